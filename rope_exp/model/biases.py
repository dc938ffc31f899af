"""Position encodings without rotation: score biases by distance, and sinusoids for the input.

Shapes: H query heads, T positions, D model width.
"""

import math

import torch
from torch import Tensor

from rope_exp.model.rope import angles, frequencies

# T5's table of biases (Raffel et al. 2020). All distances from the largest on, and some before it,
# share the last bucket.
NUM_BUCKETS = 32
LARGEST_DISTANCE = 128

# The base of sinusoids (Vaswani et al. 2017, section 3.5).
SINUSOID_BASE = 10000.0


def alibi_slopes(num_heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
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
    return torch.tensor([2.0**-exponent for exponent in exponents], dtype=dtype)


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
        num_buckets = NUM_BUCKETS // 2
        side = (offset > 0).long() * num_buckets
        distance = offset.abs()
    else:
        num_buckets = NUM_BUCKETS
        side = torch.zeros_like(offset).long()
        distance = (-offset).clamp(min=0)
    distance = distance.long()

    # log2 is exact at buckets that begin at a power of two.
    exact = num_buckets // 2
    octaves = torch.log2(distance.clamp(min=exact).double() / exact)
    shared = exact + octaves * (num_buckets - exact) / math.log2(LARGEST_DISTANCE / exact)
    shared = shared.long().clamp(max=num_buckets - 1)
    return side + torch.where(distance < exact, distance, shared)


def sinusoids(position_T: Tensor, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return sin(p / 10000^(2f/D)), then the cosines of the same angles (Vaswani et al. 2017).

    Each sine and its cosine satisfy sin^2 + cos^2 = 1. So the mean square over the D features is
    1/2 at every position, and the root mean square sqrt(1/2), for any D.

    Args:
        position_T: any real numbers, of any shape.
        dim: D, even.
        dtype: dtype of the result. Angles are float64, so large positions keep their fractions.
    Returns:
        [..., D]: all sines, then all cosines.
    Raises:
        ValueError: `dim` is odd or below 2.
    """
    theta_F = frequencies(dim, SINUSOID_BASE, torch.float64).to(position_T.device)
    angle_TF = angles(theta_F, position_T)
    return torch.cat([angle_TF.sin(), angle_TF.cos()], dim=-1).to(dtype)
