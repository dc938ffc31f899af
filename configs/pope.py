"""PoPE (Gopalakrishnan et al. 2025): content sets the size of a feature, position alone its angle.

s_ij = sum over f of softplus(q_if) softplus(k_jf) cos((i - j) theta_f - delta_f) / sqrt(K), with
theta_f = base^(-f/K) for each of the K features, and a learned phase delta_f in [-2 pi, 0].
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp import Position, Sizes
from rope_exp.model.rope import angles, frequencies

BASE = 10000.0


class Polar(Position):
    """Queries and keys of twice the width: magnitude times cosine, and times sine."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.phase = nn.Parameter(torch.zeros(sizes.num_key_value_heads * sizes.head_dim))

    def turn(self, site: str, x_BTHK: Tensor, position_T: Tensor) -> Tensor:
        if site in "vo":
            return x_BTHK
        features = x_BTHK.shape[-1]
        # base^(-f/K): the frequencies of twice as many features in pairs.
        theta_K = frequencies(2 * features, BASE, self.phase.dtype).to(x_BTHK.device)
        angle = angles(theta_K, position_T)[..., None, :]
        if site == "k":
            angle = angle + self.phase.clamp(-2 * math.pi, 0).view(-1, features)
        size_BTHK = F.softplus(x_BTHK.to(angle.dtype))
        # Scores are divided by the root of the width, which is twice that of a head.
        size_BTHK = size_BTHK * (math.sqrt(2) if site == "q" else 1)
        return torch.cat([size_BTHK * angle.cos(), size_BTHK * angle.sin()], dim=-1)
