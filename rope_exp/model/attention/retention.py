"""Retention (RetNet): weights that decay with distance in place of a softmax; no gate.

Shapes as in `base`.
"""

import math
from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.kinds import RetentionConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, Tables, by_heads, for_queries, linears
from rope_exp.model.attention.kernel import wide
from rope_exp.model.attention.recurrence import chunked, parallel
from rope_exp.model.cache import LayerCache

STATE = "state"


def retnet_log_gamma(num_heads: int) -> list[float]:
    """Return log(1 - 2^(-5-h)) of each head h."""
    return [math.log1p(-(2.0 ** (-5 - head))) for head in range(num_heads)]


class RetentionAttention(Attention):
    """o_i = rms_norm(R_i' sum over j <= i of gamma^(i-j) (q_i . k_j / sqrt(K)) v_j)."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    log_gamma_H: Tensor

    def __init__(self, config: ModelConfig, attn: RetentionConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads
        log_gamma_H = torch.tensor(retnet_log_gamma(self.num_heads), dtype=torch.float64)
        self.register_buffer("log_gamma_H", log_gamma_H, persistent=False)

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        q_BTHK, k_BTHK, v_BTHK = self._parts(x_BTD, tables)
        if cache is None:
            o_BTHK, _ = chunked(q_BTHK, k_BTHK, v_BTHK, self.log_gamma_H)
        else:
            k_BTHK = cache.silence(k_BTHK)
            earlier = cache.states.get(STATE)
            o_BTHK, state = chunked(q_BTHK, k_BTHK, v_BTHK, self.log_gamma_H, earlier)
            cache.num_seen += x_BTD.shape[1]
            cache.states = {STATE: state}
        return self._normed(o_BTHK, tables)

    def renumber(self, cache: LayerCache, tables: Tables) -> None:
        cache.states[STATE] = self.lowered_state(cache.states[STATE], tables)

    def forms(self, x_BTD: Tensor, tables: Tables) -> Mapping[str, Tensor]:
        o_BTHK = parallel(*self._parts(x_BTD, tables), self.log_gamma_H)
        return {"parallel": self._normed(o_BTHK, tables)}

    def _parts(self, x_BTD: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, scaled, and the keys and values of each query head."""
        q, k, v = linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK = self.turn("q", by_heads(q, self.head_dim), tables) * self.head_dim**-0.5
        k_BTGK = self.turn("k", by_heads(k, self.head_dim), tables)
        v_BTGK = self.turn("v", by_heads(v, self.head_dim), tables)
        return q_BTHK, for_queries(k_BTGK, self.num_heads), for_queries(v_BTGK, self.num_heads)

    def _normed(self, o_BTHK: Tensor, tables: Tables) -> Tensor:
        """Turn back first: a norm over features does not see a rotation, with weights it would."""
        o_BTHK = self.turn("o", o_BTHK, tables)
        normed = F.rms_norm(wide(o_BTHK), (self.head_dim,), eps=self.config.rms_norm_eps)
        return normed.to(o_BTHK.dtype)
