"""Position encodings without rotation: score biases by distance, and what is added at the input.

Each is a `Position`, as a class of a user's own is; one instance serves all layers.

Shapes: B batch, H query heads, T positions, E keys, D model width.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rope_exp.encoding import Position, Sizes
from rope_exp.errors import ConfigError
from rope_exp.rope import angles, frequencies
from rope_exp.sections import INIT_STD, T5_BUCKETS, PeConfig

# In T5's table of biases (Raffel et al. 2020), all distances from this one on, and some before it,
# share the last bucket.
LARGEST_DISTANCE = 128

# The base of sinusoids (Vaswani et al. 2017, section 3.5).
SINUSOID_BASE = 10000.0


def make_input(pe: PeConfig, sizes: Sizes) -> Position:
    """Return what `pe.input` adds to the embeddings."""
    if pe.input == "sinusoidal":
        return Sinusoids(sizes, sinusoid_scale(pe))
    return LearnedRows(sizes) if pe.input == "learned" else Position(sizes)


def make_bias(pe: PeConfig, sizes: Sizes) -> Position:
    """Return what `pe.bias` adds to the scores."""
    kinds: dict[str, type[Position]] = {"none": Position, "alibi": Alibi, "t5": T5Bias}
    return kinds[pe.bias](sizes)


def sinusoid_scale(pe: PeConfig) -> float:
    """Return the amplitude of sines and cosines, whose root mean square is sqrt(1/2)."""
    return pe.input_scale or INIT_STD * math.sqrt(2)


class Sinusoids(Position):
    """Adds sines and cosines to the embeddings."""

    def __init__(self, sizes: Sizes, scale: float) -> None:
        super().__init__(sizes)
        self.scale = scale
        # Made on the CPU, as those of rotations are, and moved to the device once.
        theta_F = frequencies(sizes.hidden_size, SINUSOID_BASE, torch.float64)
        theta_F = theta_F.to(torch.get_default_device())
        self.register_buffer("theta_F", theta_F, persistent=False)

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        theta_F = self.get_buffer("theta_F")
        return x_BTD + self.scale * sines_and_cosines(angles(theta_F, position_T), x_BTD.dtype)


class LearnedRows(Position):
    """Adds a learned row for each position to the embeddings, as GPT-2 does."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.empty(sizes.num_positions, sizes.hidden_size))

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        """Return x plus the rows of positions that `check` allows."""
        if position_T.is_floating_point():
            raise ConfigError("pe.input", "learned", "has no rows for positions between whole ones")
        return x_BTD + self.weight[position_T]

    def check(self, first: int, last: int) -> None:
        """Raise ConfigError if a position from `first` to `last` has no row."""
        if first < 0 or last >= len(self.weight):
            known = len(self.weight) - 1
            allowed = f"has learned positions 0 to {known}; asked for were {first} to {last}"
            raise ConfigError("pe.input", "learned", allowed)


class Alibi(Position):
    """Adds -m_h |i - j| to the scores."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        slopes_H = alibi_slopes(sizes.num_attention_heads)
        self.register_buffer("slopes_H", slopes_H, persistent=False)

    def scores(self, kept: Mapping[str, Tensor], num_queries: int) -> Tensor:
        slopes_H11 = self.get_buffer("slopes_H")[:, None, None]
        return -slopes_H11 * offsets(kept, num_queries).abs()


class T5Bias(Position):
    """Adds a learned number to the scores, for each head and bucket of offsets."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.empty(T5_BUCKETS, sizes.num_attention_heads))

    def scores(self, kept: Mapping[str, Tensor], num_queries: int) -> Tensor:
        offset_TE = offsets(kept, num_queries)
        bucket_TE = t5_buckets(offset_TE, bidirectional=not self.sizes.causal)
        return self.weight[bucket_TE].permute(2, 0, 1)


def offsets(kept: Mapping[str, Tensor], num_queries: int) -> Tensor:
    """Return offset_TE, j - i from each query to each key; all rows count alike."""
    key_E = kept["position_BE"][0]
    return key_E - key_E[-num_queries:, None]


def alibi_slopes(num_heads: int) -> Tensor:
    """Return m_h = 2^(-8(h+1)/H): head h adds -m_h |i - j| to its scores (Press et al. 2022).

    If H is not a power of two, follow BLOOM: take the slopes of the power P below it, then every
    second slope of 2P heads, starting with the first; these lie between the others.

    Args:
        num_heads: H.
    Returns:
        slope_H, steepest first; the heads past P start from the steepest again.
    """
    power = 2 ** (num_heads.bit_length() - 1)
    exponents = [8 * (head + 1) / power for head in range(power)]
    exponents += [8 * (2 * head + 1) / (2 * power) for head in range(num_heads - power)]
    return torch.tensor([2.0**-exponent for exponent in exponents], dtype=torch.float32)


def t5_buckets(offset: Tensor, *, bidirectional: bool = False) -> Tensor:
    """Return T5's bucket, one of 32 learned biases, for each key offset (Raffel et al. 2020).

    Distances below half of a side's buckets have one bucket each. Larger distances share buckets
    logarithmically, up to distance 128.

    Args:
        offset: j - i from query i to key j, as in T5. Fractional distances are rounded down.
        bidirectional: 16 buckets are for keys up to the query and 16 for keys after it. Otherwise
            all 32 are for keys up to the query; later keys, which are masked, get bucket 0.
    Returns:
        Buckets in offset's shape, int64.
    """
    if bidirectional:
        num_buckets = T5_BUCKETS // 2
        side = (offset > 0).long() * num_buckets
        distance = offset.abs()
    else:
        num_buckets = T5_BUCKETS
        side = torch.zeros_like(offset).long()
        distance = (-offset).clamp(min=0)
    distance = distance.long()

    # log2 is exact at buckets that begin at a power of two.
    exact = num_buckets // 2
    octaves = torch.log2(distance.clamp(min=exact).double() / exact)
    shared = exact + octaves * (num_buckets - exact) / math.log2(LARGEST_DISTANCE / exact)
    shared = shared.long().clamp(max=num_buckets - 1)
    return side + torch.where(distance < exact, distance, shared)


def sines_and_cosines(angle_TF: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sines of all angles, then their cosines: [..., 2F] (Vaswani et al. 2017).

    As sin^2 + cos^2 = 1, their root mean square is sqrt(1/2) at every position.
    """
    return torch.cat([angle_TF.sin(), angle_TF.cos()], dim=-1).to(dtype)
