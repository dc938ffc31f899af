"""Base class of all kinds of attention: the sites, their rotation, and the layer's interface.

q, k and v are rotated by R at their own position; o is rotated back by R^T at the query's position,
for each query head and before the output projection. Values rotate once, before heads are repeated.

Shapes: B batch, T position, D model width, H query heads, G key/value heads, K features of a key,
V of a value and of an output.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.kinds import Kind
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.kernel import attention, attention_after, wide
from rope_exp.model.cache import LayerCache
from rope_exp.model.position import Position
from rope_exp.model.positions import Positions, Tables
from rope_exp.model.rope import rotate


class Attention(nn.Module):
    """Self-attention; `sites` are those of q, k, v, o that rotate.

    Each kind defines its projections and computes its heads' outputs.

    Attributes:
        causal: whether queries attend to no later key; kinds with a state are always causal.
        window: the number of latest keys that a query attends to; None: all.
        sink_H: a learned score of each head without a key; None: softmax has none.
        own: a position encoding of a user's own that acts in this layer.
    """

    o_proj: nn.Linear
    own: Position | None
    sink_H: nn.Parameter | None
    causal = True

    def __init__(self, config: ModelConfig, attn: Kind, sites: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads
        self.own = None
        self.sink_H = None
        self.window = config.window
        self.sites = frozenset(sites)
        self.rotary_dim = attn.rotary_dim(config)
        self.scale = attn.widths(config)[0] ** -0.5

    def project_as_llama(self) -> None:
        """Create the projections of LLaMA's attention."""
        width = self.config.hidden_size
        groups = self.config.num_key_value_heads
        self.q_proj = to_heads(width, self.num_heads, self.head_dim)
        self.k_proj = to_heads(width, groups, self.head_dim)
        self.v_proj = to_heads(width, groups, self.head_dim)
        self.o_proj = from_heads(self.num_heads, self.head_dim, width)

    def forward(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
        """Return the output to be added to the residual stream.

        Args:
            x_BTD: the normed input.
            at: the positions of x's tokens.
            cache: this layer's cache of earlier tokens, to which these are added.
        """
        return self.o_proj(self.heads(x_BTD, at, cache).flatten(2))

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        """Return o_BTHV, rotated back if O rotates, before the output projection."""
        raise NotImplementedError

    def attend(
        self,
        q_BTHK: Tensor,
        k_BEGK: Tensor,
        v_BEGV: Tensor,
        at: Positions,
        cache: LayerCache | None,
    ) -> Tensor:
        """Return softmax attention of queries at the last T of E positions."""
        if cache is not None and not cache.is_prefill(q_BTHK.shape[1]):
            # As the other kernel: by the width that queries have, which a class of one's own sets.
            scale = q_BTHK.shape[-1] ** -0.5
            return self.attend_after(q_BTHK, k_BEGK, [v_BEGV], at, cache, scale)
        return attention(
            q_BTHK,
            k_BEGK,
            v_BEGV,
            self.window,
            causal=self.causal,
            bias_HTT=at.bias_HTE,
            document_BT=at.document_BT,
            sink_H=self.sink_H,
        )

    def attend_after(
        self,
        q_BTHK: Tensor,
        k_BEGK: Tensor,
        values: Sequence[Tensor],
        at: Positions,
        cache: LayerCache,
        scale: float | None = None,
    ) -> Tensor:
        """Return the same by the decoding kernel; values may come in parts, [B, E, G, ...].

        Args:
            scale: factor on the scores; None: the kind's own.
        """
        return attention_after(
            q_BTHK,
            k_BEGK,
            values,
            scale=scale or self.scale,
            window=self.window,
            num_pads_B=cache.num_pads,
            bias_HTE=at.bias_HTE,
            sink_H=self.sink_H,
        )

    def forms(self, x_BTD: Tensor, at: Positions) -> Mapping[str, Tensor]:
        """Return o_BTHV by equivalent formulas, by the names of these."""
        return {}

    def has_values_in_keys(self, at: Positions) -> bool:
        """Return whether features shared by keys and values rotate alike: one row serves both."""
        if {"k", "v"} <= self.sites:
            return at.vo is None
        return "k" not in self.sites and "v" not in self.sites

    def turn(self, site: str, x_BTHK: Tensor, at: Positions) -> Tensor:
        """Return x rotated by its position, or back for o, if the site rotates.

        A class of one's own acts before the rotation, and on outputs after it.
        """
        if site != "o":
            x_BTHK = self._own_turn(site, x_BTHK, at)
        if site in self.sites:
            x_BTHK = turned(x_BTHK, at.tables(site), self.rotary_dim, inverse=site == "o")
        return self._own_turn(site, x_BTHK, at) if site == "o" else x_BTHK

    def _own_turn(self, site: str, x_BTHK: Tensor, at: Positions) -> Tensor:
        if self.own is None or at.position_T is None:
            return x_BTHK
        return self.own.turn(site, x_BTHK, at.position_T).to(x_BTHK.dtype)


class HeadLinear(nn.Linear):
    """A linear layer with one matrix per head, stacked in its rows or its columns.

    Attributes:
        split: the dimension of heads, 0 or 1, and their number.
    """

    def __init__(self, num_in: int, num_out: int, dim: int, num_heads: int) -> None:
        super().__init__(num_in, num_out, bias=False)
        self.split = (dim, num_heads)


def to_heads(width: int, num_heads: int, features: int) -> HeadLinear:
    """Return the projection of a token onto heads, without bias."""
    return HeadLinear(width, num_heads * features, 0, num_heads)


def from_heads(num_heads: int, features: int, width: int) -> HeadLinear:
    """Return the projection of heads onto a token, without bias."""
    return HeadLinear(num_heads * features, width, 1, num_heads)


def turned(x_BTHK: Tensor, tables: Tables, rotary_dim: int, *, inverse: bool = False) -> Tensor:
    """Return x with its last `rotary_dim` features rotated.

    Outputs are rotated back: R_i^T undoes the query's position and leaves R_{j-i} on each value
    (Su 2025, eq. 5).
    """
    num_left = x_BTHK.shape[-1] - rotary_dim
    rotated = _rotated_by_head if tables[0].ndim == 4 else rotate
    if not num_left:
        return rotated(x_BTHK, *tables, inverse=inverse)
    left, last = torch.split(x_BTHK, [num_left, rotary_dim], dim=-1)
    return torch.cat([left, rotated(last, *tables, inverse=inverse)], dim=-1)


def _rotated_by_head(
    x_BTHK: Tensor, cos_BGTF: Tensor, sin_BGTF: Tensor, *, inverse: bool = False
) -> Tensor:
    """Return x rotated by tables of G heads, each shared by the H/G query heads that it serves."""
    num_shared = x_BTHK.shape[2] // cos_BGTF.shape[1]
    cos_BHTF, sin_BHTF = (
        table.repeat_interleave(num_shared, dim=1) for table in (cos_BGTF, sin_BGTF)
    )
    x_BHT1K = x_BTHK.transpose(1, 2)[:, :, :, None]
    return rotate(x_BHT1K, cos_BHTF, sin_BHTF, inverse=inverse)[:, :, :, 0].transpose(1, 2)


def linears(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return the outputs of several layers without bias, by one product with all their weights."""
    packed = F.linear(x_BTD, torch.cat([layer.weight for layer in layers]))
    return torch.split(packed, [layer.out_features for layer in layers], dim=-1)


def normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return x normalised in float32 at least, cast back to its own dtype."""
    found: Tensor = norm(wide(x))
    return found.to(x.dtype)


def split_heads(x: Tensor, features: int) -> Tensor:
    """Return [B, T, heads, features]."""
    return x.view(*x.shape[:2], -1, features)


def for_queries(x_BTGK: Tensor, num_heads: int) -> Tensor:
    """Repeat each of G heads for the query heads that it serves, in order."""
    num_shared = num_heads // x_BTGK.shape[2]
    return x_BTGK if num_shared == 1 else x_BTGK.repeat_interleave(num_shared, dim=2)
