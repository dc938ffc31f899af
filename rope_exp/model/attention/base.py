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
from rope_exp.model.attention.kernel import attention_after, causal_attention
from rope_exp.model.cache import LayerCache
from rope_exp.model.rope import rotate

Tables = tuple[Tensor, Tensor]  # cos_TF, sin_TF; or cos_BTF, sin_BTF


class Attention(nn.Module):
    """Causal self-attention; `sites` says which of q, k, v, o rotate.

    A kind gives its projections their shapes, and its heads' outputs their mathematics.
    """

    o_proj: nn.Linear

    def __init__(self, config: ModelConfig, attn: Kind, sites: Collection[str]) -> None:
        super().__init__()
        self.config = config
        self.sites = frozenset(sites)
        self.rotary_dim = attn.rotary_dim(config)
        self.scale = attn.widths(config)[0] ** -0.5

        for name, shape in attn.shapes(config).items():
            module, _, of_module = name.partition(".")
            if of_module and len(shape) == 2:
                self.add_module(module, nn.Linear(shape[1], shape[0], bias=False))

    def forward(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None = None) -> Tensor:
        """Return what is added to the residual stream.

        Args:
            x_BTD: normed.
            tables: of the positions of x.
            cache: of this layer: what earlier tokens left, to which these are added.
        """
        return self.o_proj(self.heads(x_BTD, tables, cache).flatten(2))

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        """Return o_BTHV, turned back where O rotates, before heads are mixed."""
        raise NotImplementedError

    def attend(
        self, q_BTHK: Tensor, k_BEGK: Tensor, v_BEGV: Tensor, cache: LayerCache | None
    ) -> Tensor:
        """Return softmax attention of queries that stand at the last T of E positions."""
        if cache is None or cache.is_prefill(q_BTHK.shape[1]):
            return causal_attention(q_BTHK, k_BEGK, v_BEGV, self.config.window)
        return self.attend_after(q_BTHK, k_BEGK, [v_BEGV], cache)

    def attend_after(
        self, q_BTHK: Tensor, k_BEGK: Tensor, values: Sequence[Tensor], cache: LayerCache
    ) -> Tensor:
        """Return the same by what decoding takes; values may stand in parts, [B, E, G, ...]."""
        return attention_after(
            q_BTHK,
            k_BEGK,
            values,
            scale=self.scale,
            window=self.config.window,
            num_pads_B=cache.num_pads,
        )

    def forms(self, x_BTD: Tensor, tables: Tables) -> Mapping[str, Tensor]:
        """Return o_BTHV by other formulas that must give the same; their names say which."""
        return {}

    def shift_back(self, cache: LayerCache, tables: Tables) -> None:
        """Turn all that is kept back by one angle, as if every position were lower by as much.

        Args:
            tables: of the one position that is taken off, [1, F].
        """
        for name, x_BEGK in cache.rows.items():
            x_BEGK.copy_(self.shifted(name, x_BEGK, tables))

    def shifted(self, site: str, x_BEGK: Tensor, tables: Tables) -> Tensor:
        """Return x, of any positions, turned back by one angle where the site rotates.

        What is kept of k and v bears their names.
        """
        if site not in self.sites:
            return x_BEGK
        cos_EF, sin_EF = (table.expand(x_BEGK.shape[-3], -1) for table in tables)
        return turned(x_BEGK, (cos_EF, sin_EF), self.rotary_dim, inverse=True)

    def turn(self, site: str, x_BTHK: Tensor, tables: Tables) -> Tensor:
        """Return x turned by its position, or back for o, where the site rotates."""
        if site not in self.sites:
            return x_BTHK
        return turned(x_BTHK, tables, self.rotary_dim, inverse=site == "o")


def turned(x_BTHK: Tensor, tables: Tables, rotary_dim: int, *, inverse: bool = False) -> Tensor:
    """Return x with its last `rotary_dim` features rotated.

    An output turns back: R_i^T undoes the query's position and leaves R_{j-i} on each value
    (Su 2025, eq. 5).
    """
    num_left = x_BTHK.shape[-1] - rotary_dim
    if not num_left:
        return rotate(x_BTHK, *tables, inverse=inverse)
    left, last = torch.split(x_BTHK, [num_left, rotary_dim], dim=-1)
    return torch.cat([left, rotate(last, *tables, inverse=inverse)], dim=-1)


def linears(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return what each layer, without bias, makes of x, by one product with all their weights."""
    packed = F.linear(x_BTD, torch.cat([layer.weight for layer in layers]))
    return torch.split(packed, [layer.out_features for layer in layers], dim=-1)


def split_heads(x: Tensor, features: int) -> Tensor:
    """Return [B, T, heads, features]."""
    return x.view(*x.shape[:2], -1, features)


def for_queries(x_BTGK: Tensor, num_heads: int) -> Tensor:
    """Repeat each of G heads for the query heads that it serves, in order."""
    num_shared = num_heads // x_BTGK.shape[2]
    return x_BTGK if num_shared == 1 else x_BTGK.repeat_interleave(num_shared, dim=2)
