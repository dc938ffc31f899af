"""Decay alone: no queries, no keys, the past forgotten at a constant rate.

With V and O rotating, h_i = gamma e^(-I theta) h_{i-1} + v_i and o_i = h_i: what the second
rotation makes of attention whose weights are a decay (Su 2025, related work), and LRU's core.

Shapes as in `base`.
"""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from rope_exp.config.kinds import DecayConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, Tables, by_heads, for_queries
from rope_exp.model.attention.kernel import wide
from rope_exp.model.attention.recurrence import chunked, parallel
from rope_exp.model.attention.retention import retnet_log_gamma
from rope_exp.model.cache import LayerCache

STATE = "state"
# Of nu = log(-log gamma), where it is learned: gamma from 1 - 2^-24 down to 0.05.
NU_RANGE = (-24 * math.log(2), math.log(3.0))


class DecayAttention(Attention):
    """o_i = R_i' sum over j <= i of gamma^(i-j) R_j v_j, times sqrt(1 - gamma^2) if normalised."""

    v_proj: nn.Linear
    log_gamma_H: Tensor

    def __init__(self, config: ModelConfig, attn: DecayConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.attn = attn
        self.head_dim = config.features_per_head
        self.num_heads = config.num_attention_heads

        log_gamma = retnet_log_gamma(self.num_heads)
        if isinstance(attn.gamma, float):
            log_gamma = [math.log(attn.gamma)] * self.num_heads
        log_gamma_H = torch.tensor(log_gamma, dtype=torch.float64)
        if attn.gamma == "learned":
            self.nu = nn.Parameter((-log_gamma_H).log().float())
        else:
            self.register_buffer("log_gamma_H", log_gamma_H, persistent=False)

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        v_BTHK = self._values(x_BTD, tables)
        one_BTH1 = torch.ones_like(v_BTHK[..., :1])
        log_gamma_H = self.log_gamma()
        if cache is None:
            o_BTHK, _ = chunked(one_BTH1, one_BTH1, v_BTHK, log_gamma_H)
        else:
            earlier = cache.states.get(STATE)
            real_BTH1 = cache.silence(one_BTH1)
            o_BTHK, state = chunked(one_BTH1, real_BTH1, v_BTHK, log_gamma_H, earlier)
            cache.num_seen += x_BTD.shape[1]
            cache.states = {STATE: state}
        return self._scaled(o_BTHK, tables)

    def renumber(self, cache: LayerCache, tables: Tables) -> None:
        cache.states[STATE] = self.lowered_state(cache.states[STATE], tables)

    def forms(self, x_BTD: Tensor, tables: Tables) -> Mapping[str, Tensor]:
        v_BTHK = self._values(x_BTD, tables)
        one_BTH1 = torch.ones_like(v_BTHK[..., :1])
        o_BTHK = parallel(one_BTH1, one_BTH1, v_BTHK, self.log_gamma())
        return {"parallel": self._scaled(o_BTHK, tables)}

    def log_gamma(self) -> Tensor:
        """Return log gamma of each head; learned, it is -exp(nu)."""
        if self.attn.gamma == "learned":
            return -wide(self.nu).clamp(*NU_RANGE).exp()
        return self.log_gamma_H

    def _values(self, x_BTD: Tensor, tables: Tables) -> Tensor:
        v_BTGK = self.turn("v", by_heads(self.v_proj(x_BTD), self.head_dim), tables)
        return for_queries(v_BTGK, self.num_heads)

    def _scaled(self, o_BTHK: Tensor, tables: Tables) -> Tensor:
        if self.attn.normalise == "sqrt":
            scale_H = (-torch.expm1(2 * self.log_gamma())).sqrt()
            o_BTHK = o_BTHK * scale_H[:, None].to(o_BTHK.dtype)
        return self.turn("o", o_BTHK, tables)
