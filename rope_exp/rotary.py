"""The tables of the rotation, from fixed or learned frequencies.

Learned frequencies are of the model, of each layer, or of each of its key/value heads. The trained
parameter is theta itself, used by its absolute value, or s in theta = theta0 e^s.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rope_exp.attention import Positions, Tables
from rope_exp.rope import angles, frequencies
from rope_exp.sections import PAIRS, PeConfig

# Stored beside a parameter's moments: for each of its elements, the steps that changed its sign.
CROSSINGS = "crossings"


class Rotary(nn.Module):
    """The rotation tables of every layer, from a head's `rotary_dim` features that could rotate.

    q and k share tables, and so do v and o; all four do if nothing can move the two pairs apart.

    Args:
        rotary_dim: the features of a head to which the config's fraction applies.
        pe: the bases, fractions and precision of the rotation.
        num_layers: the number of layers, each of which gets tables.
        num_heads: the number of a layer's key/value heads; used by LearnedRotary only.
    """

    def __init__(
        self, rotary_dim: int, pe: PeConfig, num_layers: int = 1, num_heads: int = 1
    ) -> None:
        super().__init__()
        self.pe = pe
        self.num_layers = num_layers
        # Learned frequencies only start equal.
        self.is_shared = pe.base_vo is None and pe.fraction_vo is None and not pe.trainable
        for pair in PAIRS:
            theta_F = frequencies(pe.num_features(rotary_dim, pair), pe.base_of(pair))
            # Computed on the CPU: on the meta device this would import torch's compiler.
            theta_F = theta_F.to(torch.get_default_device())
            # Rebuilt from the config, never stored: a checkpoint holds learned values only.
            self.register_buffer(f"theta0_{pair}", theta_F, persistent=False)

    def theta(self, pair: str) -> Tensor:
        """Return the frequencies of qk or vo, in radians a position."""
        return self.get_buffer("theta0_qk" if self.is_shared else f"theta0_{pair}")

    def forward(self, position_T: Tensor) -> list[Positions]:
        """Return each layer's inputs for positions, [T] or [B, T]."""
        qk = self.theta("qk")
        vo = self.theta("vo")
        # Compare identity, not values: a probe may extend either pair alone.
        vo_tables: Sequence[Tables | None] = [None] * self.num_layers
        if vo is not qk:
            vo_tables = self.tables(vo, position_T)
        return list(map(Positions, self.tables(qk, position_T), vo_tables))

    def tables(self, theta: Tensor, position_T: Tensor) -> list[Tables]:
        """Return the tables of each layer for frequencies as `theta` returns them."""
        if self.pe.precision == "bf16":
            theta = theta.bfloat16()
        angle = angles(theta, position_T)
        return [(angle.cos(), angle.sin())] * self.num_layers


class LearnedRotary(Rotary):
    """A rotation whose frequencies are parameters, of each pair of sites that rotates.

    Args:
        rotary_dim: the features of a head to which the config's fraction applies.
        pe: says which frequencies are learned, and by what (pe.trainable, pe.trainable_scope).
        num_layers: the number of layers, each of which may have frequencies of its own.
        num_heads: the number of a layer's key/value heads, each of which may, too.
    """

    def __init__(
        self, rotary_dim: int, pe: PeConfig, num_layers: int = 1, num_heads: int = 1
    ) -> None:
        super().__init__(rotary_dim, pe, num_layers)
        self.learned = pe.learned
        # For each pair that is counted, how many steps changed the sign of each frequency.
        self.crossings: dict[str, Tensor] = {}
        shape = pe.trained_shape(num_layers, num_heads)
        for pair, name in self.learned.items():
            begin_F = self.get_buffer(f"theta0_{pair}")
            if pe.trainable == "log":
                begin_F = begin_F * 0
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
            # Add a batch axis: tables of heads are [B, G, T, F].
            position_T = position_T[None]
        layers = [super(LearnedRotary, self).tables(x, position_T)[0] for x in theta]
        if theta.ndim == 2:
            return layers
        # From [B, T, G, F] to [B, G, T, F].
        return [(cos.transpose(1, 2), sin.transpose(1, 2)) for cos, sin in layers]


def count_crossings(rotary: Rotary, optimizer: Optimizer) -> None:
    """Count, for each frequency, the steps that change its sign; 0 counts as positive.

    The counts are in the optimizer's state, so that a checkpoint holds them. The logarithms of
    frequencies are not counted: their sign means nothing.
    """
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
