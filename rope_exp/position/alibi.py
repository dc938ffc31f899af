"""ALiBi: each score falls with the distance between query and key, by a slope of its head."""

import torch
from torch import Tensor

from rope_exp.position._encoding import ScoreBias, Sizes
from rope_exp.sections import PeConfig


class Alibi(ScoreBias):
    """Adds -m_h |i - j| to the scores."""

    def __init__(self, pe: PeConfig, sizes: Sizes) -> None:
        super().__init__(sizes)
        slopes_H = alibi_slopes(sizes.num_attention_heads)
        self.register_buffer("slopes_H", slopes_H, persistent=False)

    def of_offsets(self, offset_TE: Tensor) -> Tensor:
        return -self.get_buffer("slopes_H")[:, None, None] * offset_TE.abs()


make = Alibi


def alibi_slopes(num_heads: int) -> Tensor:
    """Return m_h = 2^(-8(h+1)/H): head h adds -m_h |i - j| to its scores (Press et al. 2022).

    If H is not a power of two, follow BLOOM: the slopes of the power P below it, then every second
    slope of 2P heads, which lie between the others.
    """
    power = 2 ** (num_heads.bit_length() - 1)
    exponents = [8 * (head + 1) / power for head in range(power)]
    exponents += [8 * (2 * head + 1) / (2 * power) for head in range(num_heads - power)]
    return torch.tensor([2.0**-exponent for exponent in exponents], dtype=torch.float32)
