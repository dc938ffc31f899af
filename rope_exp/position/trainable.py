"""Learned frequencies of the rotation, of the model, each layer, or each of its key/value heads.

The trained parameter is theta itself, used by its absolute value, or s in theta = theta0 e^s.
"""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rope_exp.attention import Tables
from rope_exp.decoder import Decoder, Rotary
from rope_exp.sections import PeConfig

# Stored beside a parameter's moments: how often each of its elements has crossed 0.
CROSSINGS = "crossings"


class LearnedRotary(Rotary):
    """A rotation whose frequencies are parameters, of each pair of sites that rotates."""

    def __init__(
        self, rotary_dim: int, pe: PeConfig, num_layers: int = 1, num_heads: int = 1
    ) -> None:
        super().__init__(rotary_dim, pe, num_layers)
        self.learned = pe.learned
        # How often each frequency has crossed 0 in training, for each pair that is counted.
        self.crossings: dict[str, Tensor] = {}
        shape = pe.trained_shape(num_layers, num_heads)
        for pair, name in self.learned.items():
            theta_F = self.get_buffer(f"theta0_{pair}")
            begin_F = theta_F * 0 if pe.trainable == "log" else theta_F
            self.register_parameter(name, nn.Parameter(begin_F.repeat(*shape, 1)))

    def theta(self, pair: str) -> Tensor:
        """Return the frequencies of qk or vo: [F], or [L, F] of layers, or [L, G, F] of heads."""
        if pair not in self.learned:
            return super().theta(pair)
        learned = self.get_parameter(self.learned[pair])
        if self.pe.trainable == "log":
            return self.get_buffer(f"theta0_{pair}") * learned.exp()
        return learned.abs()

    def tables(self, theta: Tensor, position_T: Tensor) -> list[Tables]:
        if theta.ndim == 1:
            return super().tables(theta, position_T)
        if theta.ndim == 3 and position_T.ndim == 1:
            # As of a batch, so that tables of heads have four axes.
            position_T = position_T[None]
        layers = [super(LearnedRotary, self).tables(x, position_T)[0] for x in theta]
        if theta.ndim == 2:
            return layers
        # From [B, T, G, F] to [B, G, T, F].
        return [(cos.transpose(1, 2), sin.transpose(1, 2)) for cos, sin in layers]


def count_crossings(decoder: Decoder, optimizer: Optimizer) -> None:
    """Count how often each step of `optimizer` moves a frequency across 0, which is positive.

    The counts are in the optimizer's state, so that a checkpoint holds them. The logarithms of
    frequencies are not counted: their sign means nothing.
    """
    rotary = decoder.model.rotary_emb
    if not isinstance(rotary, LearnedRotary) or rotary.pe.trainable == "log":
        return
    parameters = {pair: rotary.get_parameter(name) for pair, name in rotary.learned.items()}
    was_below: dict[str, Tensor] = {}

    def look(*_: object) -> None:
        was_below.update({pair: parameter < 0 for pair, parameter in parameters.items()})

    def count(*_: object) -> None:
        for pair, parameter in parameters.items():
            state = optimizer.state[parameter]
            if CROSSINGS not in state:
                state[CROSSINGS] = torch.zeros_like(parameter, dtype=torch.int64)
            state[CROSSINGS] += was_below[pair] != (parameter < 0)
            rotary.crossings[pair] = state[CROSSINGS]

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(count)
