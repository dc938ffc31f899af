"""Sines and cosines of the position, added to the embeddings (Vaswani et al. 2017)."""

import torch
from torch import Tensor

from rope_exp.position._encoding import Position, Sizes
from rope_exp.rope import angles, frequencies
from rope_exp.sections import PeConfig


class Sinusoids(Position):
    """Adds sines and cosines to the embeddings."""

    relative = False

    def __init__(self, pe: PeConfig, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.scale = pe.sinusoid_scale
        # Made on the CPU, as those of rotations are, and moved to the device once.
        theta_F = frequencies(sizes.hidden_size, 10000.0, torch.float64)
        theta_F = theta_F.to(torch.get_default_device())
        self.register_buffer("theta_F", theta_F, persistent=False)

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        angle_TF = angles(self.get_buffer("theta_F"), position_T)
        waves_TD = torch.cat([angle_TF.sin(), angle_TF.cos()], dim=-1).to(x_BTD.dtype)
        return x_BTD + self.scale * waves_TD


make = Sinusoids
