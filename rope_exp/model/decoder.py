"""The decoder: LLaMA's architecture with a rotation on any subset of the sites q, k, v, o.

Parameter names and the half-split layout are those of transformers' LlamaForCausalLM, so that a
QK checkpoint loads there unchanged. One function draws the initial weights; a variant adds no
parameter and draws no random number, so all variants of a seed share them bit for bit.

Shapes: B batch, T position, D model width, V vocabulary.
"""

import hashlib
import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rope_exp.config.sections import INIT_STD, Architecture
from rope_exp.model.layers import Block, Rotary
from rope_exp.model.loss import chunk_gradients, summed_cross_entropy

# The matrices of LlamaForCausalLM, which every variant has.
LLAMA_MATRIX = re.compile(
    r"(model\.embed_tokens|lm_head"
    r"|model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj))\.weight"
)
ONTO_RESIDUAL = ("o_proj.weight", "down_proj.weight")


class Trunk(nn.Module):
    """Embedding, blocks and the last norm; apart because transformers' names say `model.`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        pe = architecture.pe
        blocks = [Block(config, pe.rotate) for _ in range(config.num_hidden_layers)]

        self.embed_tokens = nn.Embedding(architecture.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Rotary(config.head_dim, pe)

    def forward(self, ids_BT: Tensor) -> Tensor:
        tables = self.rotary_emb(ids_BT.shape[1])
        x_BTD = self.embed_tokens(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, tables)
        return self.last_norm(x_BTD)

    def last_norm(self, x_BTD: Tensor) -> Tensor:
        """Norm the last layer's output.

        A method, because torch.compile passes over torch's own modules.
        """
        return self.norm(x_BTD)


class Decoder(nn.Module):
    """A causal language model: ids in, logits out; with targets, the summed cross-entropy."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        self.model = Trunk(architecture)
        self.lm_head = nn.Linear(config.hidden_size, architecture.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.chunk_gradients = chunk_gradients

    def forward(self, ids_BT: Tensor, target_BT: Tensor | None = None) -> Tensor:
        """Return logits_BTV of `ids_BT`, or the loss of predicting `target_BT`.

        The loss is the sum over B and T of -log p(target), in nats and float32.
        """
        x_BTD = self.model(ids_BT)
        if target_BT is None:
            return self.lm_head(x_BTD)

        x_ND = x_BTD.flatten(0, 1)
        target_N = target_BT.flatten()
        return summed_cross_entropy(x_ND, self.lm_head.weight, target_N, self.chunk_gradients)

    def compile_parts(self) -> None:
        """Compile one block, for every layer, the last norm and a chunk of the loss.

        Three graphs, at any depth.
        """
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        last_norm = torch.compile(self.model.last_norm, dynamic=False)
        self.model.last_norm = last_norm  # type: ignore[method-assign]
        self.chunk_gradients = torch.compile(chunk_gradients, dynamic=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every matrix from N(0, 0.02^2), those onto the residual by sqrt(2 layers) smaller.

        LLaMA's matrices are drawn on the CPU from one generator, in the order of their names: a
        pure function of the sizes and the seed, whatever the device and the variant. Any other
        matrix draws from a stream of its own, so that it moves none of them.
        """
        shared = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.model.layers))

        for name, parameter in sorted(self.named_parameters()):
            if parameter.ndim != 2:
                continue
            is_shared = LLAMA_MATRIX.fullmatch(name) is not None
            generator = shared if is_shared else own_stream(seed, name)
            std = residual_std if name.endswith(ONTO_RESIDUAL) else INIT_STD
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def own_stream(seed: int, name: str) -> torch.Generator:
    """Return a generator for one parameter, seeded by SHA-256 of the run's seed and its name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name: what a checkpoint stores and what a hash of weights covers.

    A tied head stands under both its names, as transformers' load_state_dict wants it.
    """
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named}


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 over names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
