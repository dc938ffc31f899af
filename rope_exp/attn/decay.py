"""Decay attention: no queries, no keys, the past forgotten at a constant rate.

With V and O rotating, h_i = gamma e^(-I theta) h_{i-1} + v_i and o_i = h_i. This is the second
rotation applied to attention weights that are a pure decay (Su 2025, related work), and LRU's core.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rope_exp.attention import Positions, at_least_float32, split_heads
from rope_exp.attn._recurrence import StateAttention, Terms
from rope_exp.attn.retention import retnet_log_gamma
from rope_exp.identity import Refusal, section
from rope_exp.sections import AttentionConfig, ModelConfig, OpenShare

# Learned decays start at 1 - 2^(-5-h) for head h. With more heads, the last would start beyond the
# slowest decay that can be learned, and get no gradient there.
MAX_LEARNED_HEADS = 59
# Range of a learned nu = log(-log gamma): from gamma = 1 - 2^-64, almost no decay, to 0.05.
NU_RANGE = (-(5 + MAX_LEARNED_HEADS) * math.log(2), math.log(3.0))


@section
class Config(AttentionConfig):
    """Weights gamma_h^(i-j) without queries and keys: h_i = gamma h_{i-1} + v_i, o_i = h_i.

    If V and O rotate, this is h_i = gamma e^(-I theta) h_{i-1} + v_i, a complex linear recurrence
    (Su 2025, related work).
    """

    kind: Literal["decay"] = "decay"
    # retnet: 1 - 2^(-5-h); learned: exp(-exp(nu)) per head, starting there; or one number for all.
    gamma: Literal["retnet", "learned"] | OpenShare = "retnet"
    # sqrt: LRU's factor sqrt(1 - gamma^2).
    normalise: Literal["none", "sqrt"] = "none"

    keeps_keys = False
    why_not = "attn.kind=decay rotates v and o, and has neither queries nor keys"

    def sites(self) -> tuple[str, ...]:
        return ("v", "o")

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head

    def refusals(self, model: ModelConfig) -> Iterator[Refusal]:
        count = model.num_attention_heads
        if self.gamma == "learned" and count > MAX_LEARNED_HEADS:
            reason = (
                "begins at 1 - 2^(-5-h) of head h, which is too near 1 to be learned in more than "
                f"{MAX_LEARNED_HEADS} heads; model.num_attention_heads is {count}"
            )
            yield Refusal("attn.gamma", reason)


class Layer(StateAttention):
    """o_i = R_i' sum over j <= i of gamma^(i-j) R_j v_j, times sqrt(1 - gamma^2) if normalised."""

    def __init__(self, config: ModelConfig, attn: Config, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.v_proj = self.to_heads(config.num_key_value_heads, self.head_dim)
        self.o_proj = self.from_heads()

        log_gamma_H = retnet_log_gamma(self.num_heads)
        if isinstance(attn.gamma, float):
            log_gamma_H = torch.full_like(log_gamma_H, math.log(attn.gamma))
        if attn.gamma == "learned":
            self.nu = nn.Parameter((-log_gamma_H).log().float())
        else:
            self.register_buffer("log_gamma_H", log_gamma_H, persistent=False)

    def log_gamma(self) -> Tensor:
        if self.attn.gamma == "learned":
            return -at_least_float32(self.nu).clamp(*NU_RANGE).exp()
        return self.get_buffer("log_gamma_H")

    def sums(self, x_BTD: Tensor, positions: Positions) -> list[Terms]:
        return [(None, self.rotate("v", split_heads(self.v_proj(x_BTD), self.head_dim), positions))]

    def outputs(self, results: Sequence[Tensor], positions: Positions) -> Tensor:
        o_BTHK = results[0]
        if self.attn.normalise == "sqrt":
            scale_H = (-torch.expm1(2 * self.log_gamma())).sqrt()
            o_BTHK = o_BTHK * scale_H[:, None].to(o_BTHK.dtype)
        return self.rotate("o", o_BTHK, positions)
