"""Softmax attention with grouped queries: the default, and what the published table is of.

Shapes as in `base`.
"""

from collections.abc import Collection

from torch import Tensor, nn

from rope_exp.config.kinds import SoftmaxConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, linears, normed, split_heads
from rope_exp.model.cache import LayerCache
from rope_exp.model.positions import Positions


class SoftmaxAttention(Attention):
    """o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.head_dim = config.features_per_head
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        q, k, v = linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK = split_heads(q, self.head_dim)
        k_BTGK = split_heads(k, self.head_dim)
        if self.config.qk_norm:
            q_BTHK = normed(self.q_norm, q_BTHK)
            k_BTGK = normed(self.k_norm, k_BTGK)
        q_BTHK = self.turn("q", q_BTHK, at)
        k_BTGK = self.turn("k", k_BTGK, at)
        v_BTGK = self.turn("v", split_heads(v, self.head_dim), at)
        if cache is not None:
            kept = cache.append(k=k_BTGK, v=v_BTGK)
            k_BTGK, v_BTGK = kept["k"], kept["v"]

        o_BTHK = self.attend(q_BTHK, k_BTGK, v_BTGK, at, cache)
        return self.turn("o", o_BTHK, at)
