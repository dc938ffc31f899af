"""The decoder: LLaMA's architecture with a rotation on any subset of the attention's sites q, k, v, o.

Decisions: pre-norm RMSNorm, SwiGLU, grouped-query attention, no biases, scale 1/sqrt(K), tied or untied head; parameter
names and the half-split layout are those of transformers' LlamaForCausalLM, so that a QK checkpoint loads there
unchanged. q, k and v turn by R at their own position; o turns back by R^T at the query's position, per query head,
before the output projection. Values turn once, before heads are repeated. One initialisation function; a variant
adds no parameter and draws no random number, so all variants of a seed share their initial weights bit for bit.

Shapes: B batch, T position, D model width, H query heads, G key/value heads, K head dimension, V vocabulary.
"""

import hashlib
import math
from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp.config.run import ModelConfig, PeConfig
from rope_exp.model.attention import causal_attention
from rope_exp.model.loss import chunk_gradients, summed_cross_entropy
from rope_exp.model.rope import angles, frequencies, turn

INIT_STD = 0.02

Tables = tuple[Tensor, Tensor]  # cos_TF, sin_TF


def linears(x_BTD: Tensor, *layers: nn.Linear) -> tuple[Tensor, ...]:
    """What each layer, without bias, makes of x, by one product with all of their weights."""
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
        projected = linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK, k_BTGK, v_BTGK = (
            self._turn(site, x.view(heads), tables)
            for site, x in zip("qkv", projected, strict=True)
        )
        o_BTHK = self._turn("o", causal_attention(q_BTHK, k_BTGK, v_BTGK), tables)
        return self.o_proj(o_BTHK.flatten(2))

    def _turn(self, site: str, x_BTHK: Tensor, tables: Tables) -> Tensor:
        # The output turns back: R_i^T undoes the query's position and leaves R_{j-i} on each value (seed 000, eq. 5).
        return turn(x_BTHK, *tables, inverse=site == "o") if site in self.sites else x_BTHK


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
    """The tables of cosines and sines that every layer and site shares; its frequencies may be trained."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, pe: PeConfig) -> None:
        super().__init__()
        self.num_features, self.base, self.start = pe.num_features(head_dim), pe.base, pe.start
        theta_F = frequencies(self.num_features, self.base)
        if pe.trainable:
            self.inv_freq = nn.Parameter(theta_F)
        else:
            # Rebuilt from the config, never stored: a checkpoint holds what was learned.
            self.register_buffer("inv_freq", theta_F, persistent=False)

    def forward(self, num_positions: int) -> Tables:
        angle_TF = angles(self.inv_freq, num_positions, self.start)
        return angle_TF.cos(), angle_TF.sin()


class Trunk(nn.Module):
    """Embedding, blocks and the last norm; a module of its own because transformers' names say `model.`."""

    def __init__(self, config: ModelConfig, pe: PeConfig, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            [Block(config, pe.rotate) for _ in range(config.num_hidden_layers)]
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Rotary(config.head_dim, pe)

    def forward(self, ids_BT: Tensor) -> Tensor:
        tables = self.rotary_emb(ids_BT.shape[1])
        x_BTD = self.embed_tokens(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, tables)
        return self.last_norm(x_BTD)

    def last_norm(self, x_BTD: Tensor) -> Tensor:
        """A method, because torch.compile passes over its own modules."""
        normed_BTD: Tensor = self.norm(x_BTD)
        return normed_BTD


class Decoder(nn.Module):
    """A causal language model: token ids in, logits out; with targets, the summed cross-entropy in nats."""

    def __init__(self, config: ModelConfig, pe: PeConfig, vocab_size: int) -> None:
        super().__init__()
        self.model = Trunk(config, pe, vocab_size)
        self.lm_head = nn.Linear(config.hidden_size, vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.chunk_gradients = chunk_gradients

    def forward(self, ids_BT: Tensor, target_BT: Tensor | None = None) -> Tensor:
        """Logits_BTV of `ids_BT`, or, given `target_BT`, the sum over B and T of -log p(target), in float32."""
        x_BTD = self.model(ids_BT)
        if target_BT is None:
            logits_BTV: Tensor = self.lm_head(x_BTD)
            return logits_BTV
        return summed_cross_entropy(
            x_BTD.flatten(0, 1), self.lm_head.weight, target_BT.flatten(), self.chunk_gradients
        )

    def compile_parts(self) -> None:
        """Compile one block, for every layer, the last norm and a chunk of the loss: three graphs at any depth."""
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        self.model.last_norm = torch.compile(self.model.last_norm, dynamic=False)  # type: ignore[method-assign]
        self.chunk_gradients = torch.compile(chunk_gradients, dynamic=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every matrix from N(0, 0.02^2); projections onto the residual stream are scaled by 1/sqrt(2 layers).

        Drawn on the CPU from a generator of its own, in the order of parameter names: a pure function of the sizes
        and the seed, whatever the device and the variant.
        """
        generator = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.model.layers))
        for name, parameter in sorted(self.named_parameters()):
            if parameter.ndim == 2:
                std = (
                    residual_std
                    if name.endswith(("o_proj.weight", "down_proj.weight"))
                    else INIT_STD
                )
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name: what a checkpoint stores and what a hash of weights covers.

    A tied head stands under both its names, as transformers' load_state_dict wants it.
    """
    return {
        name: parameter.detach()
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
