"""Linear attention: a similarity that factors, so that the past is a sum over keys.

phi = elu + 1 is above 0. Rotated, a product of two such features can be negative; hence the three
forms, which differ in what rotates (Su 2021, section 3.3).

Shapes as in `base`.
"""

from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.kinds import LinearConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, Tables, by_heads, for_queries, linears
from rope_exp.model.attention.kernel import wide
from rope_exp.model.attention.recurrence import chunked, parallel
from rope_exp.model.cache import LayerCache

# Names of the states, of the sums above and below the fraction.
ABOVE = "above"
BELOW = "below"


class LinearAttention(Attention):
    """o_i = sum over j <= i of sim_ij v_j / max(sum over j <= i of sim_ij, eps)."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(self, config: ModelConfig, attn: LinearConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.attn = attn
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        above, below, v_BTHK = self._parts(x_BTD, tables)
        one_BTH1 = torch.ones_like(v_BTHK[..., :1])
        states: Mapping[str, Tensor] = {}
        if cache is not None:
            above = (above[0], cache.silence(above[1]))
            below = (below[0], cache.silence(below[1]))
            states = cache.states

        none_H = torch.zeros(self.num_heads, device=x_BTD.device)
        sum_BTHK, state = chunked(*above, v_BTHK, none_H, states.get(ABOVE))
        norm_BTH1, norm_state = chunked(*below, one_BTH1, none_H, states.get(BELOW))
        if cache is not None:
            cache.num_seen += x_BTD.shape[1]
            cache.states = {ABOVE: state, BELOW: norm_state}
        return self._divided(sum_BTHK, norm_BTH1, tables)

    def renumber(self, cache: LayerCache, tables: Tables) -> None:
        cache.states[ABOVE] = self.lowered_state(cache.states[ABOVE], tables)
        if self.attn.form != "numerator":
            cache.states[BELOW] = self.lowered_state(cache.states[BELOW], tables)

    def forms(self, x_BTD: Tensor, tables: Tables) -> Mapping[str, Tensor]:
        above, below, v_BTHK = self._parts(x_BTD, tables)
        none_H = x_BTD.new_zeros(self.num_heads)
        sum_BTHK = parallel(*above, v_BTHK, none_H)
        norm_BTH1 = parallel(*below, torch.ones_like(v_BTHK[..., :1]), none_H)
        return {"parallel": self._divided(sum_BTHK, norm_BTH1, tables)}

    def _parts(
        self, x_BTD: Tensor, tables: Tables
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
        """Return queries and keys above the fraction, those below, and values."""
        q, k, v = linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK = by_heads(q, self.head_dim)
        k_BTGK = by_heads(k, self.head_dim)
        v_BTHK = self._repeated(self.turn("v", by_heads(v, self.head_dim), tables))

        if self.attn.form == "one_plus_cos":
            q_BTHK = self.turn("q", _with_one(F.normalize(wide(q_BTHK), dim=-1)), tables)
            k_BTGK = self.turn("k", _with_one(F.normalize(wide(k_BTGK), dim=-1)), tables)
            both = (q_BTHK.to(v.dtype), self._repeated(k_BTGK).to(v.dtype))
            return both, both, v_BTHK

        plain = (F.elu(q_BTHK) + 1, F.elu(k_BTGK) + 1)
        turned = (
            self.turn("q", plain[0], tables),
            self._repeated(self.turn("k", plain[1], tables)),
        )
        if self.attn.form == "both":
            return turned, turned, v_BTHK
        return turned, (plain[0], self._repeated(plain[1])), v_BTHK

    def _divided(self, sum_BTHK: Tensor, norm_BTH1: Tensor, tables: Tables) -> Tensor:
        o_BTHK = wide(sum_BTHK) / wide(norm_BTH1).clamp(min=self.attn.eps)
        return self.turn("o", o_BTHK.to(sum_BTHK.dtype), tables)

    def _repeated(self, x_BTGK: Tensor) -> Tensor:
        return for_queries(x_BTGK, self.num_heads)


def _with_one(x_BTHK: Tensor) -> Tensor:
    """Return [1; x]: a product of two is 1 + cos."""
    return F.pad(x_BTHK, (1, 0), value=1.0)
