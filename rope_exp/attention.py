"""Attention: the layer's interface, its cache, the sites and their rotation, and softmax.

q, k and v are rotated by R at their own position; o is rotated back by R^T at the query's position,
for each query head and before the output projection. Values rotate once, before heads are repeated.

The cache holds keys and values, or their latent, in the dtype in which they are read, or a state in
float32 at least: in a narrow sum over many tokens, the contribution of one more would vanish.

Shapes: B batch, T position, D model width, H query heads, G key/value heads, K features of a key,
V of a value and of an output, E entries kept in the cache, F frequencies.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.encoding import Position
from rope_exp.identity import chosen
from rope_exp.kernels import attention, wide
from rope_exp.rope import rotate
from rope_exp.sections import PAIRS, Kind, ModelConfig, SoftmaxConfig

# cos_TF and sin_TF; or [B, T, F], if rows of a batch have different positions; or [B, G, T, F],
# B possibly 1, if heads have their own frequencies.
Tables = tuple[Tensor, Tensor]


class Positions(NamedTuple):
    """Position inputs of one layer.

    Attributes:
        vo: None: v and o rotate by the tables of q and k.
        bias_HTE: added to the scores of queries at the last T of E places.
        document_BT: the document of each token; a query attends to its own only. None: to all.
        position_T: the positions themselves, or [B, T], for a class of one's own.
    """

    qk: Tables
    vo: Tables | None = None
    bias_HTE: Tensor | None = None
    document_BT: Tensor | None = None
    position_T: Any = None

    def tables(self, site: str) -> Tables:
        return self.qk if site in PAIRS[0] or self.vo is None else self.vo


@dataclass
class LayerCache:
    """One layer's part of the cache: rows for each token, [B, E, ...], and states that do not grow.

    They have no gradients, and are already rotated at their own positions.
    """

    window: int | None = None
    num_seen: int = 0
    rows: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)

    def append(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Append new rows, by the same names each time; return all rows kept."""
        for name, x in rows.items():
            x = x.detach()
            earlier = self.rows.get(name, x[:, :0])
            if self.window is not None:
                # The first new query attends to the last window - 1 earlier keys.
                earlier = earlier[:, max(earlier.shape[1] - self.window + 1, 0) :]
            self.rows[name] = torch.cat([earlier, x], dim=1)
        self.num_seen += x.shape[1]
        return self.rows


# The cache of all layers, from which `model(ids_BT, cache=cache)` continues.
Cache = list[LayerCache]


class HeadLinear(nn.Linear):
    """A linear layer with one matrix per head, stacked in its rows (dim 0) or its columns (1)."""

    def __init__(self, num_in: int, num_out: int, dim: int, num_heads: int) -> None:
        super().__init__(num_in, num_out, bias=False)
        self.split = (dim, num_heads)


class Attention(nn.Module):
    """Self-attention; `sites` are those of q, k, v, o that rotate.

    Each kind defines its projections and computes its heads' outputs.
    """

    o_proj: nn.Linear
    # A position encoding of a user's own that acts in this layer.
    own: Position | None
    # A learned score of each head without a key.
    sink_H: nn.Parameter | None
    # Kinds with a state are always causal, and hold one after so many tokens in training.
    causal = True
    chunk_size = 0

    def __init__(self, config: ModelConfig, attn: Kind, sites: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.attn: Any = attn
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads
        self.own = None
        self.sink_H = None
        self.window = config.window
        self.sites = frozenset(sites)
        self.rotary_dim = attn.rotary_dim(config)
        self.key_dim, self.out_dim = attn.widths(config)

    def to_heads(self, num_heads: int, features: int, num_in: int | None = None) -> HeadLinear:
        """Return the projection of a token, or of `num_in` features, onto heads."""
        return HeadLinear(num_in or self.config.hidden_size, num_heads * features, 0, num_heads)

    def from_heads(self) -> HeadLinear:
        """Return the projection of all heads' outputs onto a token."""
        num_in = self.num_heads * self.out_dim
        return HeadLinear(num_in, self.config.hidden_size, 1, self.num_heads)

    def project_as_llama(self) -> None:
        """Create the projections of LLaMA's attention."""
        groups = self.config.num_key_value_heads
        self.q_proj = self.to_heads(self.num_heads, self.head_dim)
        self.k_proj = self.to_heads(groups, self.head_dim)
        self.v_proj = self.to_heads(groups, self.head_dim)
        self.o_proj = self.from_heads()

    def forward(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
        """Return the output to be added to the residual stream; x's tokens enter the cache."""
        return self.o_proj(self.heads(x_BTD, at, cache).flatten(2))

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        """Return o_BTHV, rotated back if O rotates, before the output projection."""
        raise NotImplementedError

    def attend(self, q_BTHK: Tensor, k_BEGK: Tensor, v_BEGV: Tensor, at: Positions) -> Tensor:
        """Return softmax attention of queries at the last T of E positions."""
        more: Any = {"bias_HTE": at.bias_HTE, "document_BT": at.document_BT, "sink_H": self.sink_H}
        return attention(q_BTHK, k_BEGK, v_BEGV, window=self.window, causal=self.causal, **more)

    def forms(self, x_BTD: Tensor, at: Positions) -> Mapping[str, Tensor]:
        """Return o_BTHV by equivalent formulas, by the names of these."""
        return {}

    def has_values_in_keys(self, at: Positions) -> bool:
        """Return whether features shared by keys and values rotate alike: one row serves both."""
        if {"k", "v"} <= self.sites:
            return at.vo is None
        return "k" not in self.sites and "v" not in self.sites

    def turn(self, site: str, x_BTHK: Tensor, at: Positions) -> Tensor:
        """Return x rotated by its position, or back for o, if the site rotates."""
        # A class of one's own acts before the rotation, and on outputs after it; laws/ measure the
        # rotation alone, without positions.
        own = self.own if at.position_T is not None else None
        if own is not None and site != "o":
            x_BTHK = own.turn(site, x_BTHK, at.position_T).to(x_BTHK.dtype)
        if site in self.sites:
            x_BTHK = turned(x_BTHK, at.tables(site), self.rotary_dim, inverse=site == "o")
        if own is not None and site == "o":
            x_BTHK = own.turn(site, x_BTHK, at.position_T).to(x_BTHK.dtype)
        return x_BTHK


def turned(x_BTHK: Tensor, tables: Tables, rotary_dim: int, *, inverse: bool = False) -> Tensor:
    """Return x with its last `rotary_dim` features rotated, or rotated back.

    On outputs, R_i^T undoes the query's position and leaves R_{j-i} on each value (Su 2025, eq. 5).
    """
    if num_left := x_BTHK.shape[-1] - rotary_dim:
        left, last = torch.split(x_BTHK, [num_left, rotary_dim], dim=-1)
        return torch.cat([left, turned(last, tables, rotary_dim, inverse=inverse)], dim=-1)
    if tables[0].ndim < 4:
        return rotate(x_BTHK, *tables, inverse=inverse)
    # Tables of G heads, each shared by the H/G query heads that it serves.
    num_shared = x_BTHK.shape[2] // tables[0].shape[1]
    cos_BHTF, sin_BHTF = (table.repeat_interleave(num_shared, dim=1) for table in tables)
    x_BHT1K = x_BTHK.transpose(1, 2)[:, :, :, None]
    return rotate(x_BHT1K, cos_BHTF, sin_BHTF, inverse=inverse)[:, :, :, 0].transpose(1, 2)


def linears(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return the outputs of several layers without bias, by one product with all their weights."""
    packed = F.linear(x_BTD, torch.cat([layer.weight for layer in layers]))
    return torch.split(packed, [layer.out_features for layer in layers], dim=-1)


def normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return x normalised in float32 at least, cast back to its own dtype."""
    return norm(wide(x)).to(x.dtype)


def split_heads(x: Tensor, features: int) -> Tensor:
    """Return [B, T, heads, features]."""
    return x.view(*x.shape[:2], -1, features)


class SoftmaxAttention(Attention):
    """o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j.

    With a sink s_h the softmax has one more term, exp(s_h), whose value is 0 (Agarwal et al. 2025).
    With model.token_shift, k and v project x_t + mu (x_{t-1} - x_t).
    """

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.project_as_llama()
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if attn.sink:
            self.sink_H = nn.Parameter(torch.zeros(self.num_heads))
        if config.token_shift:
            self.token_shift = nn.Parameter(torch.full((config.hidden_size,), 0.5))

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        if self.config.token_shift:
            shifted_BTD = x_BTD + self.token_shift * (previous(x_BTD, at, cache) - x_BTD)
            qkv = (self.q_proj(x_BTD), *linears(shifted_BTD, self.k_proj, self.v_proj))
        else:
            qkv = linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK, k_BTGK, v_BTGK = (split_heads(x, self.head_dim) for x in qkv)
        if self.config.qk_norm:
            q_BTHK = normed(self.q_norm, q_BTHK)
            k_BTGK = normed(self.k_norm, k_BTGK)
        q_BTHK = self.turn("q", q_BTHK, at)
        rows = {"k": self.turn("k", k_BTGK, at), "v": self.turn("v", v_BTGK, at)}

        own = self.own if at.position_T is not None else None
        if own is not None and own.overrides("scores"):
            of_tokens = own.of_tokens(x_BTD, at.position_T)
            if taken := of_tokens.keys() & {*rows, "position_BE"}:
                raise ValueError(f"of_tokens: the name {taken.pop()} is taken")
            rows |= {**of_tokens, "position_BE": at.position_T.expand(len(x_BTD), -1)}
        if cache is not None:
            rows = cache.append(rows)

        more_HTE = None if own is None else own.scores(rows, q_BTHK.shape[1])
        if more_HTE is not None:
            sizes = (self.num_heads, q_BTHK.shape[1], rows["k"].shape[1])
            if more_HTE.shape[-3:] != sizes:
                raise ValueError(f"scores returned the shape {tuple(more_HTE.shape)}, not {sizes}")
            # A window may have dropped the first keys.
            usual_HTE = 0.0 if at.bias_HTE is None else at.bias_HTE[..., -sizes[2] :]
            at = at._replace(bias_HTE=usual_HTE + more_HTE)

        o_BTHK = self.attend(q_BTHK, rows["k"], rows["v"], at)
        return self.turn("o", o_BTHK, at)


def previous(x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
    """Return x_{t-1}; the first token of a row or of a document gives its own x_t."""
    before_B1D = x_BTD[:, :1]
    if cache is not None:
        before_B1D = cache.states.get("newest", before_B1D)
    previous_BTD = torch.cat([before_B1D, x_BTD[:, :-1]], dim=1)

    if at.document_BT is not None:
        earlier_BT = torch.cat([at.document_BT[:, :1], at.document_BT[:, :-1]], dim=1)
        goes_on_BT1 = (at.document_BT == earlier_BT)[..., None]
        previous_BTD = torch.where(goes_on_BT1, previous_BTD, x_BTD)

    if cache is not None:
        # A copy: a view would keep a whole prompt.
        cache.states["newest"] = x_BTD[:, -1:].detach().clone()
    return previous_BTD


def make_attention(config: ModelConfig, attn: Kind, sites: Collection[str]) -> Attention:
    """Return the attention module of one layer in which these sites rotate."""
    if isinstance(attn, SoftmaxConfig):
        return SoftmaxAttention(config, attn, sites)
    layer: type[Attention] = chosen("attn", attn.kind, "attn.kind").Layer
    return layer(config, attn, sites)
