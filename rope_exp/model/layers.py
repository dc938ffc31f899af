"""The decoder's layers: attention with a rotation on any of its sites, SwiGLU, the block.

Decisions: pre-norm RMSNorm, grouped-query attention, no biases, scale 1/sqrt(K). q, k and v turn
by R at their own position; o turns back by R^T at the query's position, for each query head and
before the output projection. Values turn once, before heads are repeated.

Shapes: B batch, T position, D model width, H query heads, G key/value heads, K head dimension.
"""

from collections.abc import Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.attention import causal_attention
from rope_exp.model.rope import angles, frequencies, rotate

Tables = tuple[Tensor, Tensor]  # cos_TF, sin_TF


def linears(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """Return what each layer, without bias, makes of x, by one product with all their weights."""
    packed = F.linear(x_BTD, torch.cat([layer.weight for layer in layers]))
    return torch.split(packed, [layer.out_features for layer in layers], dim=-1)


class Attention(nn.Module):
    """Causal self-attention; `sites` says which of q, k, v, o rotate."""

    def __init__(self, config: ModelConfig, sites: Collection[str]) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.sites = frozenset(sites)

        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor, tables: Tables) -> Tensor:
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        q, k, v = linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)

        q_BTHK = self._rotate("q", q.view(heads), tables)
        k_BTGK = self._rotate("k", k.view(heads), tables)
        v_BTGK = self._rotate("v", v.view(heads), tables)

        o_BTHK = causal_attention(q_BTHK, k_BTGK, v_BTGK)
        o_BTHK = self._rotate("o", o_BTHK, tables)
        return self.o_proj(o_BTHK.flatten(2))

    def _rotate(self, site: str, x_BTHK: Tensor, tables: Tables) -> Tensor:
        if site not in self.sites:
            return x_BTHK

        # The output turns back: R_i^T undoes the query's position and leaves R_{j-i} on each
        # value (Su 2025, eq. 5).
        return rotate(x_BTHK, *tables, inverse=site == "o")


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = linears(x_BTD, self.gate_proj, self.up_proj)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, sites: Collection[str]) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, sites)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x_BTD: Tensor, tables: Tables) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), tables)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Rotary(nn.Module):
    """The cosines and sines that every layer and site shares; their frequencies may be trained."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, pe: PeConfig) -> None:
        super().__init__()
        self.start = pe.start
        self.in_bf16 = pe.precision == "bf16"

        theta_F = frequencies(pe.num_features(head_dim), pe.base)
        if pe.trainable:
            self.inv_freq = nn.Parameter(theta_F)
        else:
            # Rebuilt from the config, never stored: a checkpoint holds what was learned.
            self.register_buffer("inv_freq", theta_F, persistent=False)

    def forward(self, num_positions: int) -> Tables:
        theta_F = self.inv_freq.bfloat16() if self.in_bf16 else self.inv_freq
        angle_TF = angles(theta_F, num_positions, self.start)
        return angle_TF.cos(), angle_TF.sin()
