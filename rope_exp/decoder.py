"""The decoder: loss head, blocks, rotation tables, initial weights, their hashes, a batch's loss.

The logits of a whole batch would be the largest tensor of a step (in float32, at V = 128k, 512 KB
a token). Here each chunk's logits live only until its loss and gradients are computed, both in the
forward pass.

Shapes: B batch, T position, N tokens, C of a chunk, D model width, V vocabulary.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rope_exp import custom_code
from rope_exp.attention import (
    Cache,
    LayerCache,
    Positions,
    at_least_float32,
    fused_linear,
    make_attention,
)
from rope_exp.config import Architecture
from rope_exp.corpus import NO_TARGET, Batch
from rope_exp.errors import ConfigError
from rope_exp.identity import import_choice
from rope_exp.position._encoding import Position, Sizes
from rope_exp.rotary import LearnedRotary, Rotary
from rope_exp.sections import INIT_STD, ModelConfig, PeConfig

# Tokens per chunk of the loss. Each chunk adds to the whole head gradient; this takes a tenth of
# the time of the chunk's matrix products.
TOKENS_OF_A_CHUNK = {"cpu": 512, "cuda": 8192}
# `chunk_gradients`, possibly compiled.
Gradients = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def gather_places(x_BTD: Tensor, place_BP: Tensor | None) -> Tensor:
    """Return x_BPD at the predicted places of each row; None: at all places."""
    if place_BP is None:
        return x_BTD
    return x_BTD.gather(1, place_BP[:, :, None].expand(-1, -1, x_BTD.shape[-1]))


def summed_cross_entropy(
    x_ND: Tensor, head_VD: Tensor, target_N: Tensor, gradients: Gradients
) -> Tensor:
    """Return the sum over n of -log softmax(head x_n)[target_n], in nats, in float32 at least.

    Args:
        x_ND: the last hidden states at the predicted places.
        head_VD: the weight of the output layer.
        target_N: the target tokens, or NO_TARGET, which adds nothing.
        gradients: `chunk_gradients`, or a compiled copy of it.
    """
    if torch.is_grad_enabled():
        return _Summed.apply(x_ND, head_VD, target_N, gradients)  # type: ignore[no-untyped-call]

    narrow_VD = _narrow(head_VD)

    nats = []
    for x_CD, target_C in zip(*chunks(_narrow(x_ND), target_N), strict=True):
        logits_CV = at_least_float32(x_CD @ narrow_VD.T)
        nats.append(F.cross_entropy(logits_CV, target_C, reduction="sum", ignore_index=NO_TARGET))
    return torch.stack(nats).sum()


def chunk_gradients(
    x_CD: Tensor, head_VD: Tensor, target_C: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a chunk's summed loss in nats, dx_CD = z head and dhead_VD = z^T x.

    z = softmax(logits) - onehot(target); dx and dhead take no part from places without a target.

    Args:
        x_CD: the last hidden states, in the dtype of products.
        head_VD: the weight of the output layer, in the same dtype.
        target_C: the target tokens, or NO_TARGET.
    """
    logits_CV = at_least_float32(x_CD @ head_VD.T)
    max_C1 = logits_CV.amax(-1, keepdim=True)
    logsumexp_C1 = (logits_CV - max_C1).exp().sum(-1, keepdim=True).log() + max_C1
    is_predicted_C1 = (target_C != NO_TARGET)[:, None].to(logits_CV.dtype)
    target_logit_C1 = logits_CV.gather(1, target_C[:, None].clamp(min=0))
    nats = (is_predicted_C1 * (logsumexp_C1 - target_logit_C1)).sum()

    token_V = torch.arange(head_VD.shape[0], dtype=torch.int32, device=head_VD.device)
    is_target_CV = token_V == target_C[:, None].int()

    # A second exponential is cheaper than keeping the first in float32.
    z_CV = (logits_CV - logsumexp_C1).exp() - is_target_CV.to(logits_CV.dtype)
    z_CV = z_CV.to(x_CD.dtype)

    # Masking here is cheap: these tensors are far narrower than z.
    is_predicted_C1 = is_predicted_C1.to(x_CD.dtype)
    dx_CD = is_predicted_C1 * (z_CV @ head_VD)
    dhead_VD = z_CV.T @ (is_predicted_C1 * x_CD)
    return nats, dx_CD, dhead_VD


class _Summed(torch.autograd.Function):
    """The summed loss; forward computes its gradients, and backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, head_VD: Tensor, target_N: Tensor, gradients: Gradients
    ) -> Tensor:
        narrow_VD = _narrow(head_VD)
        dx_ND = torch.empty_like(x_ND)
        dhead_VD = torch.zeros_like(head_VD)

        nats = []
        for x_CD, target_C, dx_CD in zip(*chunks(_narrow(x_ND), target_N, dx_ND), strict=True):
            chunk_nats, chunk_dx_CD, chunk_dhead_VD = gradients(x_CD, narrow_VD, target_C)
            nats.append(chunk_nats)
            dx_CD.copy_(chunk_dx_CD)
            dhead_VD += chunk_dhead_VD

        ctx.save_for_backward(dx_ND, dhead_VD)
        return torch.stack(nats).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_nats: Tensor) -> tuple[Tensor | None, ...]:
        dx_ND, dhead_VD = ctx.saved_tensors
        return dx_ND * d_nats[0], dhead_VD * d_nats[0], None, None


def chunks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Return each tensor's chunks, as few as possible, with sizes that differ by at most one."""
    most = TOKENS_OF_A_CHUNK[tensors[0].device.type]
    return [tensor.tensor_split(math.ceil(len(tensor) / most)) for tensor in tensors]


def _narrow(x: Tensor) -> Tensor:
    """Return x in autocast's dtype for products, if autocast is on."""
    device_type = x.device.type
    if not torch.is_autocast_enabled(device_type):
        return x
    return x.to(torch.get_autocast_dtype(device_type))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = fused_linear(x_BTD, self.gate_proj, self.up_proj)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); a variant may rotate in some layers only."""

    def __init__(self, architecture: Architecture, number: int) -> None:
        super().__init__()
        config = architecture.model
        sites = architecture.pe.sites_of(number)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = make_attention(config, architecture.attn, sites)
        self.self_attn.causal = architecture.causal
        self.self_attn.window = config.window_of(number)
        self.self_attn.own = encodings(architecture, number).get(CUSTOM_MODULE)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None = None
    ) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), positions, cache)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


# Name prefix of learned frequencies, which are not drawn at random.
FREQUENCIES = "model.rotary_emb."
# Name prefixes of the parameters of our own encodings; a user's are `CUSTOM`.
POSITIONS = (FREQUENCIES, "model.added_positions.", "model.score_bias.")
# The module name of a user's encoding; initial values and checkpoints depend on it.
CUSTOM_MODULE = "own"
CUSTOM = f".{CUSTOM_MODULE}."  # in the name of each of its parameters


class PositionLeaf(Protocol):
    """A file of position/: an encoding at the input or of the scores."""

    def make(self, pe: PeConfig, sizes: Sizes) -> Position: ...


def position_leaf(name: str) -> PositionLeaf:
    """Return the file of position/ that pe.input or pe.bias names."""
    return cast("PositionLeaf", import_choice("position", name, "pe"))


def encodings(architecture: Architecture, layer: int | None) -> dict[str, Position]:
    """Return new encodings besides rotation, by the names of their modules.

    Args:
        architecture: the decoder's.
        layer: the number of a layer, counted from 0, for the encodings that act in it; None: for
            those outside the layers.
    """
    model = architecture.model
    pe = architecture.pe
    sizes = Sizes(
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.features_per_head,
        model.num_hidden_layers,
        architecture.num_positions,
        architecture.causal,
        layer,
    )
    made: dict[str, Position] = {}
    if layer is None:
        for name, choice in (("added_positions", pe.input), ("score_bias", pe.bias)):
            if choice != "none":
                made[name] = position_leaf(choice).make(pe, sizes)
    if pe.code is not None:
        custom = custom_code.make(pe, sizes)
        if custom is not None:
            made[CUSTOM_MODULE] = custom
    return made


class Trunk(nn.Module):
    """Embedding, blocks and last norm; separate because transformers' names begin with `model.`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        pe = architecture.pe
        self.pe = pe
        self.start = pe.start
        num_layers = config.num_hidden_layers

        # nn.Embedding() would draw: on the meta device that imports torch's compiler, for a second.
        undrawn_VD = torch.empty(architecture.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(undrawn_VD, freeze=False)
        self.layers = nn.ModuleList(Block(architecture, number) for number in range(num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        rotary = LearnedRotary if pe.trainable else Rotary
        attn = architecture.attn
        self.rotary_emb = rotary(attn.rotary_dim(config), pe, num_layers, attn.key_heads(config))

        outside = encodings(architecture, layer=None)
        for name, encoding in outside.items():
            self.add_module(name, encoding)
        self.score_bias = outside.get("score_bias")
        self.outside_layers = [*outside.values()]
        # One more than the last position that all encodings have, also those of layers, with the
        # key of the encoding that has the fewest.
        limits: list[tuple[int | None, str]] = []
        for name, module in self.named_modules():
            if isinstance(module, Position) and module.limit is not None:
                is_own = name.rpartition(".")[2] == CUSTOM_MODULE
                limits.append((module.limit, "code" if is_own else "input"))
        self.num_positions, self.limiting_key = min(limits, default=(None, ""))

    def forward(
        self,
        ids_BT: Tensor,
        cache: Cache | None = None,
        *,
        position_BT: Tensor | None = None,
        document_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the normalised hidden states of all tokens; see `Decoder.forward`."""
        if cache is not None and document_BT is not None:
            raise ValueError("a cache has no documents: pass whole rows at once, without a cache")

        num_new = ids_BT.shape[1]
        num_before = 0 if cache is None else cache[0].num_seen
        place_E = torch.arange(num_before + num_new, device=ids_BT.device)
        position_T = place_E[num_before:] if position_BT is None else position_BT
        position_T = self.start + position_T
        if self.num_positions is not None:
            first, last = self.start + num_before, self.start + num_before + num_new - 1
            # Reading a tensor waits for a GPU, so only positions that are given are read.
            if position_BT is not None:
                first, last = int(position_T.min()), int(position_T.max())
            if first < 0 or last >= self.num_positions:
                limit = self.num_positions - 1
                reason = f"has positions 0 to {limit}; asked for were {first} to {last}"
                key = self.limiting_key
                raise ConfigError(f"pe.{key}", getattr(self.pe, key), reason)

        x_BTD = self.embed_tokens(ids_BT)
        for encoding in self.outside_layers:
            x_BTD = encoding.embed(x_BTD, position_T).to(x_BTD.dtype)
        bias_HTE = None
        if self.score_bias is not None:
            # A score bias depends on distance alone, so places serve as positions.
            bias_HTE = self.score_bias.scores({"position_BE": place_E[None]}, num_new)

        layer_caches: Sequence[LayerCache | None] = cache or [None] * len(self.layers)
        inputs = zip(self.layers, self.rotary_emb(position_T), layer_caches, strict=True)
        for layer, positions, layer_cache in inputs:
            positions = positions._replace(
                bias_HTE=bias_HTE, document_BT=document_BT, position_T=position_T
            )
            x_BTD = layer(x_BTD, positions, layer_cache)
        return self.last_norm(x_BTD)

    def last_norm(self, x_BTD: Tensor) -> Tensor:
        # A method, because torch.compile skips torch's own modules.
        return self.norm(x_BTD)


class Decoder(nn.Module):
    """A language model: ids in, logits out; with targets, their summed -log p, in nats.

    A model of real numbers returns predictions instead, and the sum of their mean squared errors.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        self.architecture = architecture
        self.model = Trunk(architecture)
        num_outputs = architecture.num_outputs or architecture.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, num_outputs, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.chunk_gradients = chunk_gradients

    def forward(
        self,
        ids_BT: Tensor,
        target_BP: Tensor | None = None,
        cache: Cache | None = None,
        *,
        position_BT: Tensor | None = None,
        document_BT: Tensor | None = None,
        place_BP: Tensor | None = None,
    ) -> Tensor:
        """Return the logits at the predicted places of `ids_BT`, or the loss of `target_BP` there.

        Args:
            ids_BT: the token ids that the model reads.
            target_BP: the targets at these places; or [B, P, O], O real numbers each. None: the
                logits are returned.
            cache: earlier tokens, from which these ids continue; they are added to it.
            position_BT: real numbers, to which pe.start is added; None: 0, 1, 2, ..., or on from
                the cache.
            document_BT: tokens attend to tokens of the same number only; None: to all.
            place_BP: the P places of each row that have targets; None: all.
        Returns:
            Logits [B, P, V], or predictions [B, P, O] of real numbers; or the summed loss, in
            float32 at least.
        Raises:
            ValueError: both a cache and documents are given.
            ConfigError: the position encoding has no such position (pe.input, pe.code).
        """
        x_BTD = self.model(ids_BT, cache, position_BT=position_BT, document_BT=document_BT)
        x_BTD = gather_places(x_BTD, place_BP)
        if target_BP is None:
            return self.lm_head(x_BTD)

        x_ND = x_BTD.flatten(0, 1)
        if self.architecture.num_outputs is not None:
            predicted_NO = at_least_float32(F.linear(x_ND, self.lm_head.weight))
            error_NO = predicted_NO - target_BP.flatten(0, 1)
            return error_NO.square().mean(dim=-1).sum()
        target_N = target_BP.flatten()
        return summed_cross_entropy(x_ND, self.lm_head.weight, target_N, self.chunk_gradients)

    def compile_parts(self) -> None:
        """Compile one block for all layers, the last norm and a chunk of the loss: three graphs."""
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        last_norm = torch.compile(self.model.last_norm, dynamic=False)
        self.model.last_norm = last_norm  # type: ignore[method-assign]
        self.chunk_gradients = torch.compile(chunk_gradients, dynamic=False)

    def new_cache(self) -> Cache:
        """Return an empty cache of all layers.

        Raises:
            ConfigError: attention is bidirectional, so there is nothing to cache.
        """
        if not self.architecture.causal:
            reason = "looks both ways: there is nothing to cache, and no next token to generate"
            raise ConfigError("train.objective", ..., reason)
        blocks: Any = self.model.layers
        return [LayerCache(block.self_attn.window) for block in blocks]

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every matrix from N(0, s^2): s = 0.02, or 0.02/sqrt(2 layers) onto the residual.

        LLaMA's matrices are drawn on the CPU from one generator, in the order of their names: a
        pure function of the sizes and the seed. A kind takes those that match its names and shapes.
        Any other matrix draws from its own stream, seeded by SHA-256 of the run's seed and its
        name, so that it changes none of LLaMA's.
        """
        shared = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.model.layers))

        def drawn(name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
            is_onto_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = residual_std if is_onto_residual else INIT_STD
            return torch.empty(shape).normal_(0.0, std, generator=generator)

        left = dict(self.named_parameters())
        for name, shape in sorted(llama_matrices(self.architecture).items()):
            matrix = drawn(name, shape, shared)
            if name in left and left[name].shape == shape:
                left.pop(name).copy_(matrix)

        for name, parameter in left.items():
            if parameter.ndim == 2 and not name.startswith(FREQUENCIES):
                digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
                stream = int.from_bytes(digest[:8], "little") >> 1
                generator = torch.Generator().manual_seed(stream)
                parameter.copy_(drawn(name, parameter.shape, generator))


@functools.cache
def meta_decoder(architecture: Architecture) -> Decoder:
    """Return a decoder on the meta device, with shapes but no data: instant at any size."""
    with torch.device("meta"):
        return Decoder(architecture)


def llama_matrices(architecture: Architecture) -> dict[str, torch.Size]:
    """Return the shapes of LLaMA's matrices, as transformers names them, at these sizes."""
    model = architecture.model
    # A kind with its own sizes takes any hidden_size, even one too small for LLaMA's heads.
    if model.features_per_head < 2:
        model = replace(model, head_dim=2)
    llama = Architecture(model, PeConfig(rotate=()), architecture.vocab_size)
    named = meta_decoder(llama).named_parameters()
    return {name: matrix.shape for name, matrix in named if matrix.ndim == 2}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, as stored and hashed: a tied head has both its names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named}


def llama_weights(decoder: Decoder) -> dict[str, Tensor]:
    """Return the weights with names and shapes of transformers' LLaMA: every variant has them."""
    shapes = llama_matrices(decoder.architecture)
    norms = ("model.norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight")
    return {
        name: tensor
        for name, tensor in weights(decoder).items()
        if name.endswith(norms) or shapes.get(name) == tensor.shape
    }


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 over names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device without waiting for the copy."""

    def copy(array: Any) -> Tensor | None:
        if array is None:
            return None
        tensor = torch.as_tensor(array)
        if device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    return Batch(*map(copy, batch._replace(hashed_BS=None)))


class Ranks(Protocol):
    """The processes of a run, as a sum over them needs them (parallel.py)."""

    rank: int
    world_size: int

    def sum(self, tensor: Tensor) -> Tensor: ...


@torch.no_grad()
def held_out_loss(
    model: nn.Module, held_out: Batch, micro_batch_size: int, parallel: "Ranks | None" = None
) -> float:
    """Return the mean nats per predicted token, or the mean squared error per predicted place.

    Args:
        model: a decoder, or one wrapped for training; its mode and autocast are the caller's.
        held_out: all held-out rows, on the host.
        micro_batch_size: the rows that the device reads at a time.
        parallel: the ranks, each of which reads its share of the rows; all must call this. None:
            this process reads all rows.
    Returns:
        The mean over all ranks' targets, the same on every rank.
    """
    rank = 0
    world_size = 1
    if parallel is not None:
        rank = parallel.rank
        world_size = parallel.world_size

    device = next(model.parameters()).device
    mine = on_device(held_out.rows(slice(rank, None, world_size)), device)
    nats = torch.zeros((), dtype=torch.float64, device=device)
    # Eager: compiling a second graph does not pay off for a few batches.
    with torch.compiler.set_stance("force_eager"):
        for rows in mine.split(micro_batch_size):
            nats += model(rows.ids_BT, rows.target_BP, **rows.model_kwargs).double()

    if parallel is not None:
        nats = parallel.sum(nats)
    return float(nats) / held_out.num_targets
