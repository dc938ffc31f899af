"""Retention (RetNet): weights that decay with distance instead of a softmax; no gate."""

import math
from collections.abc import Collection, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import Positions, at_least_float32, fused_linear, split_heads
from rope_exp.attn._recurrence import StateAttention, Terms
from rope_exp.identity import section
from rope_exp.sections import AttentionConfig, ModelConfig


def retnet_log_gamma(num_heads: int) -> Tensor:
    """Return log(1 - 2^(-5-h)) of each head h, in float64."""
    logs = [math.log1p(-(2.0 ** (-5 - head))) for head in range(num_heads)]
    return torch.tensor(logs, dtype=torch.float64)


@section
class Config(AttentionConfig):
    """RetNet's retention: weights gamma_h^(i-j) q_i' k_j / sqrt(K), gamma_h = 1 - 2^(-5-h).

    RMS norm over each head follows, without weights, after the output is rotated back; no gate.
    """

    kind: Literal["retention"] = "retention"

    keeps_keys = False

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head**2


class Layer(StateAttention):
    """o_i = rms_norm(R_i' sum over j <= i of gamma^(i-j) (q_i' k_j / sqrt(K)) v_j)."""

    def __init__(self, config: ModelConfig, attn: Config, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.project_as_llama()
        self.register_buffer("log_gamma_H", retnet_log_gamma(self.num_heads), persistent=False)

    def log_gamma(self) -> Tensor:
        return self.get_buffer("log_gamma_H")

    def sums(self, x_BTD: Tensor, positions: Positions) -> list[Terms]:
        q, k, v = fused_linear(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK = self.rotate("q", split_heads(q, self.head_dim), positions) * self.head_dim**-0.5
        k_BTGK = self.rotate("k", split_heads(k, self.head_dim), positions)
        return [((q_BTHK, k_BTGK), self.rotate("v", split_heads(v, self.head_dim), positions))]

    def outputs(self, results: Sequence[Tensor], positions: Positions) -> Tensor:
        o_BTHK = self.rotate("o", results[0], positions)
        eps = self.config.rms_norm_eps
        normed = F.rms_norm(at_least_float32(o_BTHK), (self.head_dim,), eps=eps)
        return normed.to(o_BTHK.dtype)
