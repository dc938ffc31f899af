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
    """Position inputs of one layer.

    Attributes:
        qk: the tables by which q and k rotate.
        vo: the tables by which v and o rotate; None: those of q and k.
        bias_HTE: added to the scores of queries at the last T of E places; None: nothing.
        document_BT: the number of each token's document; a query attends to keys of its own
            document only. None: to all.
        position_T: the positions, or [B, T] of them, for a user's position encoding; None only
            if no such encoding acts in the layer.
    """

    qk: Tables
    vo: Tables | None = None
    bias_HTE: Tensor | None = None
    document_BT: Tensor | None = None
    position_T: Any = None

    def tables(self, site: str) -> Tables:
        """Return the tables by which q, k, v or o rotates."""
        if self.vo is None or site in PAIRS[0]:
            return self.qk
        return self.vo


@dataclass
class LayerCache:
    """One layer's part of the cache. Its tensors have no gradients, and are already rotated.

    Attributes:
        window: the number of latest keys that a query attends to; None: all, so all rows are kept.
        num_seen: the number of tokens that the cache has read.
        rows: a row of each token that is kept, [B, E, ...], such as "k" and "v".
        states: tensors that do not grow with the number of tokens.
    """

    window: int | None = None
    num_seen: int = 0
    rows: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)

    def append(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Append the rows of new tokens, [B, T, ...], whose names are the same at each call.

        Returns:
            All rows that are kept. With a window, those that no new or later query can attend to
            are dropped.
        """
        for name, x in rows.items():
            x = x.detach()
            earlier = self.rows.get(name, x[:, :0])
            if self.window is not None:
                # The first new query attends to the last window - 1 earlier keys.
                earlier = earlier[:, max(earlier.shape[1] - self.window + 1, 0) :]
            self.rows[name] = torch.cat([earlier, x], dim=1)
        # All rows have as many new tokens.
        self.num_seen += next(iter(rows.values())).shape[1]
        return self.rows


# The cache of all layers, from which `model(ids_BT, cache=cache)` continues.
Cache = list[LayerCache]


class HeadLinear(nn.Linear):
    """A linear layer without bias that holds one matrix for each head.

    Muon reads `split`, the dimension and the number of heads, to update each matrix by itself.

    Args:
        num_in, num_out: the features of its input and of its output, of all heads together.
        dim: the dimension of its weight along which the heads' matrices are stacked: 0 if each
            head has its own rows (outputs), 1 if each has its own columns (inputs).
        num_heads: the number of these matrices; it divides the size of that dimension.
    """

    def __init__(self, num_in: int, num_out: int, dim: int, num_heads: int) -> None:
        super().__init__(num_in, num_out, bias=False)
        self.split = (dim, num_heads)


class Attention(nn.Module):
    """Self-attention in which some of q, k, v, o rotate; each kind computes its heads' outputs.

    Args:
        config: the sizes of the model.
        attn: the config of this kind of attention.
        sites: those of q, k, v, o that rotate in this layer.

    Attributes:
        causal: whether a query attends to no later key.
        window: the number of latest keys that a query attends to, its own included; None: all.
        sink_H: a learned score of each head that has no key; None: the softmax has none.
        rotary_dim: the number of a head's last features that may rotate, at every site;
            pe.fraction takes the first share of them.
        key_dim: K, the features of a head's key.
        out_dim: V, the features of a head's value and output.
    """

    o_proj: nn.Linear
    # Kinds with a state are always causal.
    causal = True

    def __init__(self, config: ModelConfig, attn: AttentionConfig, sites: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.attn: Any = attn
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads
        # A user's position encoding that acts in this layer. The names of its parameters, from
        # which their initial values are drawn, contain this name.
        self.own: Any = None
        self.sink_H: nn.Parameter | None = None
        self.window = config.window
        self.sites = frozenset(sites)
        self.rotary_dim = attn.rotary_dim(config)
        self.key_dim, self.out_dim = attn.widths(config)

    def to_heads(self, num_heads: int, features: int, num_in: int | None = None) -> HeadLinear:
        """Return a new projection [.., num_in] -> [.., num_heads * features].

        Each head has rows of its own in the weight. `split_heads` makes [B, T, H, K] of the output.

        Args:
            num_heads: H for queries; G for keys and values that query heads share.
            features: the features of one head.
            num_in: the features of the input; None: D, the width of the model.
        """
        if num_in is None:
            num_in = self.config.hidden_size
        return HeadLinear(num_in, num_heads * features, 0, num_heads)

    def from_heads(self) -> HeadLinear:
        """Return a new projection of all heads' outputs side by side, [.., H V] -> [.., D]."""
        num_in = self.num_heads * self.out_dim
        return HeadLinear(num_in, self.config.hidden_size, 1, self.num_heads)

    def project_as_llama(self) -> None:
        """Create the projections of LLaMA's attention: q_proj, k_proj, v_proj and o_proj."""
        groups = self.config.num_key_value_heads
        self.q_proj = self.to_heads(self.num_heads, self.head_dim)
        self.k_proj = self.to_heads(groups, self.head_dim)
        self.v_proj = self.to_heads(groups, self.head_dim)
        self.o_proj = self.from_heads()

    def forward(
        self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None = None
    ) -> Tensor:
        """Return the layer's output [B, T, D], which the block adds to the residual stream.

        Args:
            x_BTD: the normalised input.
            positions: the position inputs of x's tokens.
            cache: this layer's cache of earlier tokens, to which x's tokens are added; None: there
                are no earlier tokens.
        """
        return self.o_proj(self.heads(x_BTD, positions, cache).flatten(2))

    def heads(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None) -> Tensor:
        """Return o_BTHV, the heads' outputs before the output projection.

        They are rotated back if O rotates.

        Args:
            x_BTD: the normalised input.
            positions: the position inputs of x's tokens.
            cache: this layer's cache of earlier tokens, to which x's tokens are added; or None.
        """
        raise NotImplementedError

    def attend(
        self, q_BTHK: Tensor, k_BEGK: Tensor, v_BEGV: Tensor, positions: Positions
    ) -> Tensor:
        """Return o_BTHV by softmax attention, with this layer's window, sink and causality.

        Args:
            q_BTHK: queries, rotated if Q rotates, at the last T of the E places.
            k_BEGK: keys of all E places, rotated if K rotates; each of the G heads serves H/G
                query heads, in order.
            v_BEGV: values of the same places, rotated if V rotates.
            positions: the bias and the documents of the queries' tokens.
        """
        return attention(
            q_BTHK,
            k_BEGK,
            v_BEGV,
            window=self.window,
            causal=self.causal,
            bias_HTE=positions.bias_HTE,
            document_BT=positions.document_BT,
            sink_H=self.sink_H,
        )

    def forms(self, x_BTD: Tensor, positions: Positions) -> Mapping[str, Tensor]:
        """Return o_BTHV as equivalent formulas compute it, by the formulas' names.

        The laws compare each with `heads`. A kind with one formula returns an empty mapping.
        """
        return {}

    def rotate(self, site: str, x_BTHK: Tensor, positions: Positions) -> Tensor:
        """Return x rotated by its position, or back for o, if the site rotates in this layer.

        Args:
            site: q, k, v or o.
            x_BTHK: the heads of the site: query heads, or key/value heads, [B, T, G, K].
            positions: the position inputs of x's tokens.
        Returns:
            A tensor of x's dtype and, unless a user's encoding makes q and k wider, x's shape.
        """
        # A user's encoding acts before the rotation, and on outputs after it.
        encoding = self.own
        if encoding is not None and site != "o":
            x_BTHK = encoding.turned(site, x_BTHK, positions.position_T)
        if site in self.sites:
            x_BTHK = rotate_last(
                x_BTHK, positions.tables(site), self.rotary_dim, inverse=site == "o"
            )
        if encoding is not None and site == "o":
            x_BTHK = encoding.turned(site, x_BTHK, positions.position_T)
        return x_BTHK


def rotate_last(
    x_BTHK: Tensor, tables: Tables, rotary_dim: int, *, inverse: bool = False
) -> Tensor:
    """Return x with some of its last `rotary_dim` features rotated by their positions, or back.

    Those that the tables cover rotate: the first 2F for F frequencies (pe.fraction). On outputs,
    R_i^T undoes the query's position and leaves R_{j-i} on each value (Su 2025, eq. 5).

    Args:
        x_BTHK: queries, keys, values or outputs; all other features pass.
        tables: cosines and sines of the positions' angles. If G heads have their own, [B, G, T, F],
            each serves H/G heads of x, in order.
        rotary_dim: the number of last features that may rotate; pe.fraction takes the first share
            of them.
        inverse: rotate by the opposite angle, as outputs are.
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
    """Return a projection's output [B, T, H K] as [B, T, H, K], with K = `features`."""
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

    def project(
        self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None
    ) -> tuple[Tensor, ...]:
        """Return q [B, T, H K], and k and v [B, T, G K], of all heads side by side, not rotated.

        Args:
            x_BTD: the normalised input.
            positions: the position inputs of x's tokens.
            cache: this layer's cache; a kind that also reads the token before keeps that here.
        """
        return fused_linear(x_BTD, self.q_proj, self.k_proj, self.v_proj)

    def heads(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None) -> Tensor:
        qkv = self.project(x_BTD, positions, cache)
        q_BTHK, k_BTGK, v_BTGK = (split_heads(x, self.head_dim) for x in qkv)
        if self.config.qk_norm:
            q_BTHK = normed(self.q_norm, q_BTHK)
            k_BTGK = normed(self.k_norm, k_BTGK)
        q_BTHK = self.rotate("q", q_BTHK, positions)
        rows = {"k": self.rotate("k", k_BTGK, positions), "v": self.rotate("v", v_BTGK, positions)}

        encoding = self.own
        if encoding is not None:
            rows |= encoding.rows_to_cache(x_BTD, positions.position_T, rows)
        if cache is not None:
            rows = cache.append(rows)
        if encoding is not None:
            positions = positions._replace(
                bias_HTE=encoding.with_scores(positions.bias_HTE, rows, q_BTHK)
            )

        o_BTHK = self.attend(q_BTHK, rows["k"], rows["v"], positions)
        return self.rotate("o", o_BTHK, positions)


class ShiftedAttention(SoftmaxAttention):
    """Softmax attention whose keys and values project x_t + mu (x_{t-1} - x_t)."""

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.token_shift = nn.Parameter(torch.full((config.hidden_size,), 0.5))

    def project(
        self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None
    ) -> tuple[Tensor, ...]:
        shifted_BTD = x_BTD + self.token_shift * (previous(x_BTD, positions, cache) - x_BTD)
        return self.q_proj(x_BTD), *fused_linear(shifted_BTD, self.k_proj, self.v_proj)


def previous(x_BTD: Tensor, positions: Positions, cache: LayerCache | None = None) -> Tensor:
    """Return x_{t-1} of each token; the first token of a row or of a document gives its own x_t.

    Args:
        x_BTD: the inputs of a layer.
        positions: its documents decide where a token has no earlier one.
        cache: holds the input of the last token before these, and then that of the last of these;
            None: a row begins with its first token.
    """
    before_B1D = x_BTD[:, :1]
    if cache is not None:
        before_B1D = cache.states.get("newest", before_B1D)
    previous_BTD = torch.cat([before_B1D, x_BTD[:, :-1]], dim=1)

    if positions.document_BT is not None:
        earlier_BT = torch.cat([positions.document_BT[:, :1], positions.document_BT[:, :-1]], dim=1)
        goes_on_BT1 = (positions.document_BT == earlier_BT)[..., None]
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
    """Return a new attention module of one layer.

    Args:
        config: the sizes of the model.
        attn: the config of the kind, which decides the class.
        sites: those of q, k, v, o that rotate in this layer.
    Raises:
        ConfigError: there is no file of attn/ for this kind.
    """
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
        q_BTHK: queries.
        k_BEGK: keys, in the queries' dtype.
        v_BEGV: values, which may be wider or narrower than keys.
        window: the number of keys that a query attends to, its own being the last; None: all.
        causal: the sum is over j <= i; otherwise over all j, without a window.
        bias_HTE: added to the scores; or [B, H, T, E]. If it covers more keys than k, its last E
            columns are used.
        document_BT: a query attends only to keys of the same number; then T is E.
        sink_H: one more score in each softmax, whose value is 0.
    """
    assert causal or window is None
    num_queries, num_keys = q_BTHK.shape[1], k_BEGK.shape[1]
    if window is not None and window >= num_keys:
        window = None
    if bias_HTE is not None:
        bias_HTE = bias_HTE[..., -num_keys:]
    is_plain = all(x is None for x in (window, document_BT, bias_HTE, sink_H))

    if num_queries == 1 and k_BEGK.shape[2] < q_BTHK.shape[2] and is_plain:
        return _one_query(q_BTHK, k_BEGK, v_BEGV)

    on_cpu = q_BTHK.device.type == "cpu"
    has_kernel = on_cpu and num_queries == num_keys <= cpu_attention.MAX_LENGTH
    mask = None
    if has_kernel or num_queries < num_keys or not is_plain:
        mask = attention_mask(q_BTHK, num_keys, window, causal, document_BT)

    if not has_kernel:
        return _fused(q_BTHK, k_BEGK, v_BEGV, mask, bias_HTE, sink_H, causal)
    k_BTHK = for_queries(k_BEGK, q_BTHK.shape[2])
    v_BTHV = for_queries(v_BEGV, q_BTHK.shape[2])
    return cpu_attention.materialised_attention(
        q_BTHK, k_BTHK, v_BTHV, bias_HTE, mask, window, causal, sink_H
    )


def _one_query(q_B1HK: Tensor, k_BEGK: Tensor, v_BEGV: Tensor) -> Tensor:
    """Return o_B1HV of one query that attends to every key.

    The S = H/G query heads that share a head of keys become S queries of that head, so keys and
    values are not repeated.
    """
    num_groups = k_BEGK.shape[2]
    q_BSGK = q_B1HK.reshape(q_B1HK.shape[0], num_groups, -1, q_B1HK.shape[3]).transpose(1, 2)
    o_BSGV = attention(q_BSGK, k_BEGK, v_BEGV, causal=False)
    return o_BSGV.transpose(1, 2).flatten(1, 2)[:, None]


def attention_mask(
    q_BTHK: Tensor,
    num_keys: int,
    window: int | None,
    causal: bool,
    document_BT: Tensor | None,
) -> Tensor | None:
    """Return True where a query attends to a key, [T, E], or [B, 1, T, T] with documents.

    Args:
        q_BTHK: the queries, at the last T of the E = `num_keys` places.
        num_keys: E.
        window: the number of keys that a query attends to, its own being the last; None: all.
        causal: whether a query attends to no later key.
        document_BT: a query attends only to keys of the same number; None: of any.
    Returns:
        The mask; None if every query attends to every key.
    """
    mask = None
    if causal:
        # int32 is as wide as the scores, so the mask vectorises.
        key_E = torch.arange(num_keys, dtype=torch.int32, device=q_BTHK.device)
        query_T1 = key_E[num_keys - q_BTHK.shape[1] :, None]
        mask = key_E <= query_T1
        if window is not None:
            mask = mask & (key_E > query_T1 - window)

    if document_BT is not None:
        is_same = (document_BT[:, :, None] == document_BT[:, None, :])[:, None]
        mask = is_same if mask is None else mask & is_same
    return mask


def _fused(
    q_BTHK: Tensor,
    k_BEGK: Tensor,
    v_BEGV: Tensor,
    mask: Tensor | None,
    bias_HTE: Tensor | None,
    sink_H: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return the output of `attention` by torch's fused kernel.

    Without a mask, `causal` alone decides which keys a query attends to. Keys and values are padded
    to one width. Grouped heads are repeated on a CPU (up to twice as fast), with a mask, or past
    MAX_FLASH features; otherwise the kernel takes them as they are.
    """
    num_queries, num_heads, key_dim = q_BTHK.shape[1:]
    num_keys, num_groups, out_dim = v_BEGV.shape[1:]
    if bias_HTE is not None or sink_H is not None:
        additive_mask = q_BTHK.new_zeros(())
        if bias_HTE is not None:
            additive_mask = bias_HTE.to(q_BTHK.dtype)
        if mask is not None:
            additive_mask = torch.where(mask, additive_mask, -math.inf)

        if sink_H is not None:
            # The sink is a last column of the mask, with a key and a value of 0.
            shape = (*additive_mask.shape[:-3], num_heads, num_queries, num_keys)
            additive_mask = additive_mask.expand(shape)
            column = sink_H.to(additive_mask.dtype)[:, None, None]
            column = column.expand(*additive_mask.shape[:-1], 1)
            additive_mask = torch.cat([additive_mask, column], dim=-1)
            k_BEGK = F.pad(k_BEGK, (0, 0, 0, 0, 0, 1))
            v_BEGV = F.pad(v_BEGV, (0, 0, 0, 0, 0, 1))
        mask = additive_mask

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
    if num_shared == 1:
        return x_BTGK
    return x_BTGK.repeat_interleave(num_shared, dim=2)


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 at least, as fused kernels accumulate."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
