"""The decoder's layers besides attention: SwiGLU and the block.

Decisions: pre-norm RMSNorm, no biases.

Shapes: B batch, T position, D model width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.architecture import Architecture
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import linears
from rope_exp.model.attention.build import make_attention
from rope_exp.model.cache import LayerCache
from rope_exp.model.own import make_own
from rope_exp.model.positions import Positions


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

    def __init__(self, architecture: Architecture, number: int = 0) -> None:
        """Build one layer.

        Args:
            number: the layer's index, from 0: a variant may rotate in some layers only.
        """
        super().__init__()
        config = architecture.model
        sites = architecture.pe.sites_of(number)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = make_attention(config, architecture.attn, sites)
        self.self_attn.causal = architecture.causal
        self.self_attn.window = config.window_of(number)
        self.self_attn.own = make_own(architecture, number)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), at, cache)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
