"""The decoder's layers beside attention: SwiGLU, the block, and the rotation's tables.

Decisions: pre-norm RMSNorm, no biases.

Shapes: B batch, T position, D model width, F frequencies.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.architecture import Architecture
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.attention.base import Tables, linears
from rope_exp.model.attention.build import make_attention
from rope_exp.model.cache import LayerCache
from rope_exp.model.rope import angles, frequencies


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

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = make_attention(config, architecture.attn, architecture.pe.rotate)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None = None) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), tables, cache)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Rotary(nn.Module):
    """The cosines and sines that every layer and site shares; their frequencies may be trained."""

    inv_freq: Tensor

    def __init__(self, rotary_dim: int, pe: PeConfig) -> None:
        super().__init__()
        self.start = pe.start
        self.in_bf16 = pe.precision == "bf16"

        theta_F = frequencies(pe.num_features(rotary_dim), pe.base)
        if pe.trainable:
            self.inv_freq = nn.Parameter(theta_F)
        else:
            # Rebuilt from the config, never stored: a checkpoint holds what was learned.
            self.register_buffer("inv_freq", theta_F, persistent=False)

    def forward(self, position_T: Tensor) -> Tables:
        """Return the tables of positions, [T] or [B, T], counted from `start`."""
        theta_F = self.inv_freq.bfloat16() if self.in_bf16 else self.inv_freq
        angle_TF = angles(theta_F, self.start + position_T)
        return angle_TF.cos(), angle_TF.sin()
