"""What every kind of attention shares: its sites, the turn of each, and how a layer calls it.

q, k and v turn by R at their own position; o turns back by R^T at the query's position, for each
query head and before the output projection. Values turn once, before heads are repeated.

Shapes: B batch, T position, D model width, H query heads, G key/value heads, K features of a key,
V of a value and of an output.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.kind import Kind
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.kernel import attention, attention_after, wide
from rope_exp.model.cache import LayerCache
from rope_exp.model.positions import Positions, Tables
from rope_exp.model.rope import rotate


class Attention(nn.Module):
    """Self-attention; `sites` says which of q, k, v, o rotate.

    A kind gives its projections their shapes, and its heads' outputs their mathematics.

    Attributes:
        causal: whether a query meets no later key; those that keep a state always are.
    """

    o_proj: nn.Linear
    causal = True

    def __init__(self, config: ModelConfig, attn: Kind, sites: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.sites = frozenset(sites)
        self.rotary_dim = attn.rotary_dim(config)
        self.scale = attn.widths(config)[0] ** -0.5

    def project_as_llama(self) -> None:
        """Make the projections of LLaMA's attention."""
        config = self.config
        groups = config.num_key_value_heads
        features = config.features_per_head
        self.q_proj = to_heads(config.hidden_size, config.num_attention_heads, features)
        self.k_proj = to_heads(config.hidden_size, groups, features)
        self.v_proj = to_heads(config.hidden_size, groups, features)
        self.o_proj = from_heads(config.num_attention_heads, features, config.hidden_size)

    def forward(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
        """Return what is added to the residual stream.

        Args:
            x_BTD: normed.
            at: where the tokens of x stand.
            cache: of this layer: what earlier tokens left, to which these are added.
        """
        return self.o_proj(self.heads(x_BTD, at, cache).flatten(2))

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        """Return o_BTHV, turned back where O rotates, before heads are mixed."""
        raise NotImplementedError

    def attend(
        self,
        q_BTHK: Tensor,
        k_BEGK: Tensor,
        v_BEGV: Tensor,
        at: Positions,
        cache: LayerCache | None,
    ) -> Tensor:
        """Return softmax attention of queries that stand at the last T of E positions."""
        if cache is not None and not cache.is_prefill(q_BTHK.shape[1]):
            return self.attend_after(q_BTHK, k_BEGK, [v_BEGV], at, cache)
        return attention(
            q_BTHK,
            k_BEGK,
            v_BEGV,
            self.config.window,
            causal=self.causal,
            bias_HTT=at.bias_HTE,
            document_BT=at.document_BT,
        )

    def attend_after(
        self,
        q_BTHK: Tensor,
        k_BEGK: Tensor,
        values: Sequence[Tensor],
        at: Positions,
        cache: LayerCache,
    ) -> Tensor:
        """Return the same by what decoding takes; values may stand in parts, [B, E, G, ...]."""
        return attention_after(
            q_BTHK,
            k_BEGK,
            values,
            scale=self.scale,
            window=self.config.window,
            num_pads_B=cache.num_pads,
            bias_HTE=at.bias_HTE,
        )

    def forms(self, x_BTD: Tensor, at: Positions) -> Mapping[str, Tensor]:
        """Return o_BTHV by other formulas that must give the same; their names say which."""
        return {}

    def has_values_in_keys(self, at: Positions) -> bool:
        """Return whether features that keys and values share turn alike, so that one row serves."""
        if {"k", "v"} <= self.sites:
            return at.vo is None
        return "k" not in self.sites and "v" not in self.sites

    def shift_back(self, cache: LayerCache, at: Positions) -> None:
        """Turn all that is kept back by one angle, as if every position were lower by as much.

        Args:
            at: the one position that is taken off.
        """
        for name, x_BEGK in cache.rows.items():
            x_BEGK.copy_(self.shifted(name, x_BEGK, at))

    def shifted(self, site: str, x_BEGK: Tensor, at: Positions) -> Tensor:
        """Return x, of any positions, turned back by one angle where the site rotates.

        What is kept of k and v bears their names.
        """
        if site not in self.sites:
            return x_BEGK
        cos, sin = at.tables(site)
        shape = (*cos.shape[:-2], x_BEGK.shape[1], cos.shape[-1])
        tables = (cos.expand(shape), sin.expand(shape))
        return turned(x_BEGK, tables, self.rotary_dim, inverse=True)

    def turn(self, site: str, x_BTHK: Tensor, at: Positions) -> Tensor:
        """Return x turned by its position, or back for o, where the site rotates."""
        if site not in self.sites:
            return x_BTHK
        return turned(x_BTHK, at.tables(site), self.rotary_dim, inverse=site == "o")


class HeadLinear(nn.Linear):
    """A matrix that is one a head, in its rows or in its columns.

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

    An output turns back: R_i^T undoes the query's position and leaves R_{j-i} on each value
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
    """Return x rotated by tables that each of G heads has for itself and the H/G that it serves."""
    num_shared = x_BTHK.shape[2] // cos_BGTF.shape[1]
    cos_BHTF, sin_BHTF = (
        table.repeat_interleave(num_shared, dim=1) for table in (cos_BGTF, sin_BGTF)
    )
    x_BHT1K = x_BTHK.transpose(1, 2)[:, :, :, None]
    return rotate(x_BHT1K, cos_BHTF, sin_BHTF, inverse=inverse)[:, :, :, 0].transpose(1, 2)


def linears(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return what each layer, without bias, makes of x, by one product with all their weights."""
    packed = F.linear(x_BTD, torch.cat([layer.weight for layer in layers]))
    return torch.split(packed, [layer.out_features for layer in layers], dim=-1)


def normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return x normed in float32 at least, in its own dtype."""
    found: Tensor = norm(wide(x))
    return found.to(x.dtype)


def split_heads(x: Tensor, features: int) -> Tensor:
    """Return [B, T, heads, features]."""
    return x.view(*x.shape[:2], -1, features)


def for_queries(x_BTGK: Tensor, num_heads: int) -> Tensor:
    """Repeat each of G heads for the query heads that it serves, in order."""
    num_shared = num_heads // x_BTGK.shape[2]
    return x_BTGK if num_shared == 1 else x_BTGK.repeat_interleave(num_shared, dim=2)
