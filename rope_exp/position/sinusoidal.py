"""Sines and cosines of the position, added to the embeddings (Vaswani et al. 2017)."""

import torch
from torch import Tensor

from rope_exp.encoding import Position, Sizes
from rope_exp.rope import angles, frequencies
from rope_exp.sections import PeConfig

# Section 3.5 of the article.
SINUSOID_BASE = 10000.0


class Sinusoids(Position):
    """Adds sines and cosines to the embeddings."""

    relative = False

    def __init__(self, pe: PeConfig, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.scale = pe.sinusoid_scale
        # Made on the CPU, as those of rotations are, and moved to the device once.
        theta_F = frequencies(sizes.hidden_size, SINUSOID_BASE, torch.float64)
        theta_F = theta_F.to(torch.get_default_device())
        self.register_buffer("theta_F", theta_F, persistent=False)

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        angle_TF = angles(self.get_buffer("theta_F"), position_T)
        return x_BTD + self.scale * sines_and_cosines(angle_TF, x_BTD.dtype)


make = Sinusoids


def sines_and_cosines(angle_TF: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sines of all angles, then their cosines: [..., 2F] (Vaswani et al. 2017).

    As sin^2 + cos^2 = 1, their root mean square is sqrt(1/2) at every position.
    """
    return torch.cat([angle_TF.sin(), angle_TF.cos()], dim=-1).to(dtype)
