"""Attention: the layer's interface, its cache, the sites and their rotation, softmax, its kernel.

q, k and v are rotated by R at their own position; o is rotated back by R^T at the query's position,
for each query head and before the output projection. Values rotate once, before heads are repeated.

The cache holds keys and values, or their latent, in the dtype in which they are read, or a state in
float32 at least: in a narrow sum over many tokens, the contribution of one more would vanish.

Softmax attention is torch's fused kernel, or on a CPU our own (cpu_attention.py).

Shapes: B batch, T position, D model width, H query heads, G key/value heads, K features of a key,
V of a value and of an output, E entries kept in the cache, F frequencies.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp import cpu_attention
from rope_exp.identity import import_choice
from rope_exp.rope import rotate
from rope_exp.sections import PAIRS, AttentionConfig, ModelConfig, SoftmaxConfig

# cos_TF and sin_TF; or [B, T, F], if rows of a batch have different positions; or [B, G, T, F],
# B possibly 1, if heads have their own frequencies.
Tables = tuple[Tensor, Tensor]


class Positions(NamedTuple):
    """Position inputs of one layer."""

    qk: Tables
    vo: Tables | None = None  # None: v and o rotate by the tables of q and k
    bias_HTE: Tensor | None = None  # added to the scores of queries at the last T of E places
    # The document of each token; a query attends to its own only. None: to all.
    document_BT: Tensor | None = None
    position_T: Any = None  # the positions, or [B, T], for an encoding of a user's own

    def tables(self, site: str) -> Tables:
        return self.qk if site in PAIRS[0] or self.vo is None else self.vo


@dataclass
class LayerCache:
    """One layer's part of the cache: rows of each token, [B, E, ...], and states that do not grow.

    They have no gradients, and are already rotated.
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
    """Self-attention in which some of q, k, v, o rotate; each kind computes its heads' outputs."""

    o_proj: nn.Linear
    # Kinds with a state are always causal.
    causal = True

    def __init__(self, config: ModelConfig, attn: AttentionConfig, sites: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.attn: Any = attn
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads
        # A user's own position encoding that acts in this layer.
        self.own: Any = None
        # A learned score of each head without a key.
        self.sink_H: nn.Parameter | None = None
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

    def rotate(self, site: str, x_BTHK: Tensor, at: Positions) -> Tensor:
        """Return x rotated by its position, or back for o, if the site rotates."""
        # A user's own encoding acts before the rotation, and on outputs after it.
        if self.own is not None and site != "o":
            x_BTHK = self.own.turn(site, x_BTHK, at.position_T).to(x_BTHK.dtype)
        if site in self.sites:
            x_BTHK = rotate_last(x_BTHK, at.tables(site), self.rotary_dim, inverse=site == "o")
        if self.own is not None and site == "o":
            x_BTHK = self.own.turn(site, x_BTHK, at.position_T).to(x_BTHK.dtype)
        return x_BTHK


def rotate_last(
    x_BTHK: Tensor, tables: Tables, rotary_dim: int, *, inverse: bool = False
) -> Tensor:
    """Return x with its last `rotary_dim` features rotated, or rotated back.

    On outputs, R_i^T undoes the query's position and leaves R_{j-i} on each value (Su 2025, eq. 5).
    """
    if num_left := x_BTHK.shape[-1] - rotary_dim:
        left, last = torch.split(x_BTHK, [num_left, rotary_dim], dim=-1)
        return torch.cat([left, rotate_last(last, tables, rotary_dim, inverse=inverse)], dim=-1)
    if tables[0].ndim < 4:
        return rotate(x_BTHK, *tables, inverse=inverse)
    # Tables of G heads, each shared by the H/G query heads that it serves.
    num_shared = x_BTHK.shape[2] // tables[0].shape[1]
    cos_BHTF, sin_BHTF = (table.repeat_interleave(num_shared, dim=1) for table in tables)
    x_BHT1K = x_BTHK.transpose(1, 2)[:, :, :, None]
    return rotate(x_BHT1K, cos_BHTF, sin_BHTF, inverse=inverse)[:, :, :, 0].transpose(1, 2)


def fused_linear(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return several layers' outputs, by one product with all their weights."""
    packed = F.linear(x_BTD, torch.cat([layer.weight for layer in layers]))
    return torch.split(packed, [layer.out_features for layer in layers], dim=-1)


def normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return x normalised in float32 at least, cast back to its own dtype."""
    return norm(at_least_float32(x)).to(x.dtype)


def split_heads(x: Tensor, features: int) -> Tensor:
    """Return [B, T, heads, features]."""
    return x.view(*x.shape[:2], -1, features)


class SoftmaxAttention(Attention):
    """o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j.

    With a sink s_h the softmax has one more term, exp(s_h), whose value is 0 (Agarwal et al. 2025).
    """

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.project_as_llama()
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if attn.sink:
            self.sink_H = nn.Parameter(torch.zeros(self.num_heads))

    def project(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> tuple[Tensor, ...]:
        """Return q, k and v of all heads side by side, not rotated."""
        return fused_linear(x_BTD, self.q_proj, self.k_proj, self.v_proj)

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        qkv = self.project(x_BTD, at, cache)
        q_BTHK, k_BTGK, v_BTGK = (split_heads(x, self.head_dim) for x in qkv)
        if self.config.qk_norm:
            q_BTHK = normed(self.q_norm, q_BTHK)
            k_BTGK = normed(self.k_norm, k_BTGK)
        q_BTHK = self.rotate("q", q_BTHK, at)
        rows = {"k": self.rotate("k", k_BTGK, at), "v": self.rotate("v", v_BTGK, at)}

        if self.own is not None:
            rows |= self.own.rows_to_cache(x_BTD, at.position_T, rows)
        if cache is not None:
            rows = cache.append(rows)
        if self.own is not None:
            at = at._replace(bias_HTE=self.own.with_scores(at.bias_HTE, rows, q_BTHK))

        o_BTHK = self.attend(q_BTHK, rows["k"], rows["v"], at)
        return self.rotate("o", o_BTHK, at)


class ShiftedAttention(SoftmaxAttention):
    """Softmax attention whose keys and values project x_t + mu (x_{t-1} - x_t)."""

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.token_shift = nn.Parameter(torch.full((config.hidden_size,), 0.5))

    def project(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> tuple[Tensor, ...]:
        shifted_BTD = x_BTD + self.token_shift * (previous(x_BTD, at, cache) - x_BTD)
        return self.q_proj(x_BTD), *fused_linear(shifted_BTD, self.k_proj, self.v_proj)


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


class AttentionLeaf(Protocol):
    """A file of attn/: the keys of a kind of attention, and its layer."""

    @property
    def Config(self) -> type[AttentionConfig]: ...
    @property
    def Layer(self) -> type[Attention]: ...


def attention_leaf(kind: str) -> AttentionLeaf:
    """Return the file of attn/ that attn.kind names."""
    return cast("AttentionLeaf", import_choice("attn", kind, "attn.kind"))


def make_attention(config: ModelConfig, attn: AttentionConfig, sites: Collection[str]) -> Attention:
    """Return the attention module of one layer in which these sites rotate."""
    layer: type[Attention] = SoftmaxAttention
    if not isinstance(attn, SoftmaxConfig):
        layer = attention_leaf(attn.kind).Layer
    elif config.token_shift:
        layer = ShiftedAttention
    return layer(config, attn, sites)


MAX_FLASH = 256  # features of a head, in the fast forms of torch's kernel


def attention(
    q_BTHK: Tensor,
    k_BEGK: Tensor,
    v_BEGV: Tensor,
    *,
    window: int | None = None,
    causal: bool = True,
    bias_HTE: Tensor | None = None,
    document_BT: Tensor | None = None,
    sink_H: Tensor | None = None,
) -> Tensor:
    """Return o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j, in the inputs' dtype.

    The queries are at the last T of E positions. The softmax is taken in float32 at least. Each of
    the G heads of keys and values serves H/G query heads, in order.

    Args:
        window: the number of keys that a query attends to, its own being the last.
        causal: the sum is over j <= i; otherwise over all j, without a window.
        bias_HTE: added to the scores; or [B, H, T, E]. If it has more keys, these are the last.
        document_BT: a query attends only to keys of the same number.
        sink_H: one more score in each softmax, whose value is 0.
    """
    assert causal or window is None
    num_queries, num_keys = q_BTHK.shape[1], k_BEGK.shape[1]
    window = None if window is None or window >= num_keys else window
    bias_HTE = None if bias_HTE is None else bias_HTE[..., -num_keys:]

    num_groups = k_BEGK.shape[2]
    is_plain = all(x is None for x in (window, document_BT, bias_HTE, sink_H))
    if num_queries == 1 and num_groups < q_BTHK.shape[2] and is_plain:
        # One query meets every key: the heads that share keys are queries of one head.
        q_BSGK = q_BTHK.reshape(q_BTHK.shape[0], num_groups, -1, q_BTHK.shape[3]).transpose(1, 2)
        o_BSGV = attention(q_BSGK, k_BEGK, v_BEGV, causal=False)
        return o_BSGV.transpose(1, 2).flatten(1, 2)[:, None]

    # Which keys each query attends to, [T, E] or [B, 1, T, T]; None: by `causal` alone.
    is_met = None
    on_cpu = q_BTHK.device.type == "cpu"
    has_kernel = on_cpu and num_queries == num_keys <= cpu_attention.MAX_LENGTH
    if causal and (has_kernel or num_queries < num_keys or not is_plain):
        # int32 is as wide as the scores, so the mask vectorises.
        key_E = torch.arange(num_keys, dtype=torch.int32, device=q_BTHK.device)
        query_T1 = key_E[num_keys - num_queries :, None]
        is_met = key_E <= query_T1
        if window is not None:
            is_met = is_met & (key_E > query_T1 - window)
    if document_BT is not None:
        is_same = (document_BT[:, :, None] == document_BT[:, None, :])[:, None]
        is_met = is_same if is_met is None else is_met & is_same

    if not has_kernel:
        return _fused(q_BTHK, k_BEGK, v_BEGV, is_met, bias_HTE, sink_H, causal)
    k_BTHK, v_BTHV = (for_queries(x, q_BTHK.shape[2]) for x in (k_BEGK, v_BEGV))
    more = (bias_HTE, is_met, window, causal, sink_H)
    return cpu_attention.attention(q_BTHK, k_BTHK, v_BTHV, *more)


def _fused(
    q_BTHK: Tensor,
    k_BEGK: Tensor,
    v_BEGV: Tensor,
    mask: Tensor | None,
    bias_HTE: Tensor | None,
    sink_H: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return the same by torch's kernel.

    Its fast forms need one width, and take grouped heads with neither a mask nor more than
    `MAX_FLASH` features; on a CPU, grouped heads take up to twice as long as repeated heads.
    """
    num_queries, num_heads, key_dim = q_BTHK.shape[1:]
    num_keys, num_groups, out_dim = v_BEGV.shape[1:]
    if bias_HTE is not None or sink_H is not None:
        added = q_BTHK.new_zeros(()) if bias_HTE is None else bias_HTE.to(q_BTHK.dtype)
        mask = added if mask is None else torch.where(mask, added, -math.inf)
    if sink_H is not None and mask is not None:
        # The sink is a last column of the mask, with a key and a value of 0.
        mask = mask.expand(*mask.shape[:-3], num_heads, num_queries, num_keys)
        column = sink_H.to(mask.dtype)[:, None, None].expand(*mask.shape[:-1], 1)
        mask = torch.cat([mask, column], dim=-1)
        k_BEGK, v_BEGV = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k_BEGK, v_BEGV))

    if key_dim != out_dim:
        widest = max(key_dim, out_dim)
        q_BTHK = F.pad(q_BTHK, (0, widest - key_dim))
        k_BEGK = F.pad(k_BEGK, (0, widest - key_dim))
        v_BEGV = F.pad(v_BEGV, (0, widest - out_dim))

    is_fast = mask is None and q_BTHK.shape[3] <= MAX_FLASH
    repeats = num_groups < num_heads and not (is_fast and q_BTHK.device.type != "cpu")
    if repeats:
        k_BEGK, v_BEGV = (for_queries(x, num_heads) for x in (k_BEGK, v_BEGV))

    o_BHTV = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BEGK.transpose(1, 2),
        v_BEGV.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=key_dim**-0.5,
        enable_gqa=num_groups < num_heads and not repeats,
    )
    return o_BHTV[..., :out_dim].transpose(1, 2)


def for_queries(x_BTGK: Tensor, num_heads: int) -> Tensor:
    """Repeat each key/value head for the query heads that it serves, in order."""
    num_shared = num_heads // x_BTGK.shape[2]
    return x_BTGK if num_shared == 1 else x_BTGK.repeat_interleave(num_shared, dim=2)


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 at least, as fused kernels accumulate."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
