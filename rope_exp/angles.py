"""Position inputs of the decoder's layers: the rotation tables, and what goes with them.

q and k share their tables, and so do v and o: a relative rotation needs no more. All four share
them if nothing can move the two pairs apart.

Shapes: B batch, T position, F frequencies, L layers, G key/value heads, H query heads, E keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rope_exp.rope import angles, frequencies
from rope_exp.sections import PAIRS, PeConfig

# cos_TF and sin_TF; or [B, T, F], if rows of a batch have different positions; or [B, G, T, F],
# B possibly 1, if heads have their own frequencies.
Tables = tuple[Tensor, Tensor]


class Positions(NamedTuple):
    """Position inputs of one layer.

    Attributes:
        qk: the tables of q and k.
        vo: the tables of v and o; None: those of q and k.
        bias_HTE: added to the scores of queries at the last T of E places; None: nothing.
        document_BT: the document of each token; a query attends to its own only. None: to all.
        position_T: the positions themselves, or [B, T], for a class of one's own.
    """

    qk: Tables
    vo: Tables | None = None
    bias_HTE: Tensor | None = None
    document_BT: Tensor | None = None
    position_T: Tensor | None = None

    def tables(self, site: str) -> Tables:
        """Return the rotation tables of a site."""
        return self.qk if site in PAIRS[0] or self.vo is None else self.vo


class Rotary(nn.Module):
    """The rotation tables of every layer and site; their frequencies may be trained.

    The trained parameter is theta itself, used by its absolute value, or the logarithm s in
    theta = theta0 e^s; one per model, per layer, or per key/value head of each layer.
    """

    def __init__(
        self, rotary_dim: int, pe: PeConfig, *, num_layers: int = 1, num_heads: int = 1
    ) -> None:
        """Make the frequencies of both pairs of sites.

        Args:
            rotary_dim: the number of a head's features that could rotate.
            num_heads: the number of key/value heads.
        """
        super().__init__()
        self.start = pe.start
        self.num_layers = num_layers
        self.in_bf16 = pe.precision == "bf16"
        self.in_log = pe.trainable == "log"
        self.is_one = pe.is_one_rotation
        self.learned = dict(zip(pe.trained_pairs, pe.learned_names, strict=True))

        shape = pe.trained_shape(num_layers, num_heads)
        for pair in PAIRS:
            theta_F = frequencies(pe.num_features(rotary_dim, pair), pe.base_of(pair))
            # Computed on the CPU: on the meta device this would import torch's compiler.
            theta_F = theta_F.to(torch.get_default_device())
            # Rebuilt from the config, never stored: a checkpoint holds learned values only.
            self.register_buffer(f"theta0_{pair}", theta_F, persistent=False)
            if pair in self.learned:
                begin_F = theta_F * 0 if self.in_log else theta_F
                begin = begin_F.repeat(*shape, 1) if shape else begin_F.clone()
                self.register_parameter(self.learned[pair], nn.Parameter(begin))

    def theta(self, pair: str) -> Tensor:
        """Return the frequencies of qk or vo in radians a position: [F], [L, F] or [L, G, F]."""
        theta0_F: Tensor = self.get_buffer("theta0_qk" if self.is_one else f"theta0_{pair}")
        if pair not in self.learned:
            return theta0_F
        learned = self.get_parameter(self.learned[pair])
        return theta0_F * learned.exp() if self.in_log else learned.abs()

    def forward(self, position_T: Tensor) -> list[Positions]:
        """Return each layer's inputs for positions, [T] or [B, T], counted from `start`."""
        position_T = self.start + position_T
        theta_qk = self.theta("qk")
        theta_vo = self.theta("vo")
        qk = self._of_layers(theta_qk, position_T)
        # Compare identity, not values: a probe may extend either pair alone.
        if theta_vo is theta_qk:
            return [Positions(tables) for tables in qk]
        vo = self._of_layers(theta_vo, position_T)
        return [Positions(*tables) for tables in zip(qk, vo, strict=True)]

    def _of_layers(self, theta: Tensor, position_T: Tensor) -> list[Tables]:
        """Return the tables of each layer."""
        if self.in_bf16:
            theta = theta.bfloat16()
        if theta.ndim == 1:
            return [self._tables(theta, position_T)] * self.num_layers
        return [self._tables(of_layer, position_T) for of_layer in theta]

    def _tables(self, theta: Tensor, position_T: Tensor) -> Tables:
        """Return the tables of one layer's frequencies, [F] or [G, F]."""
        angle = angles(theta, position_T)
        if theta.ndim == 2:
            # From [T, G, F] or [B, T, G, F] to [B, G, T, F].
            angle = angle.transpose(-3, -2)
            angle = angle if angle.ndim == 4 else angle[None]
        return angle.cos(), angle.sin()
