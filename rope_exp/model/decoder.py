"""The decoder: LLaMA's architecture with a rotation on any subset of the sites q, k, v, o.

Parameter names and the half-split layout are those of transformers' LlamaForCausalLM, so a QK
checkpoint loads there unchanged. One function draws the initial weights. Parameters that only some
variants have never change LLaMA's own, so all variants of a seed share these bit for bit.

Shapes: B batch, T position, D model width, V vocabulary.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rope_exp.config.architecture import Architecture
from rope_exp.config.sections import INIT_STD
from rope_exp.config.variants import PeConfig
from rope_exp.model.biases import LearnedRows, make_bias, make_input
from rope_exp.model.cache import Cache, LayerCache
from rope_exp.model.layers import Block
from rope_exp.model.loss import at_places, chunk_gradients, summed_cross_entropy, summed_squares
from rope_exp.model.own import make_own, sizes_of
from rope_exp.model.position import Sizes
from rope_exp.model.positions import Rotary
from rope_exp.system.errors import ConfigError

# Name prefix of learned frequencies, which are not drawn at random.
FREQUENCIES = "model.rotary_emb."
# Name prefixes of the parameters that encode positions.
POSITIONS = (FREQUENCIES, "model.added_positions.", "model.score_bias.")
ONTO_RESIDUAL = ("o_proj.weight", "down_proj.weight")
LLAMA_NORMS = (
    "model.norm.weight",
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
)


class Trunk(nn.Module):
    """Embedding, blocks and last norm; separate because transformers' names begin with `model.`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        attn = architecture.attn
        pe = architecture.pe
        self.pe = pe
        blocks = [Block(architecture, number) for number in range(config.num_hidden_layers)]

        # nn.Embedding() would draw: on the meta device that imports torch's compiler, for a second.
        undrawn_VD = torch.empty(architecture.vocab_size, config.hidden_size)
        with_weights: Callable[..., nn.Embedding] = nn.Embedding.from_pretrained
        self.embed_tokens = with_weights(undrawn_VD, freeze=False)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Rotary(
            attn.rotary_dim(config),
            pe,
            num_layers=config.num_hidden_layers,
            num_heads=attn.key_heads(config),
        )
        sizes = Sizes(**sizes_of(architecture), layer=None)
        self.added_positions = make_input(pe, sizes)
        self.score_bias = make_bias(pe, sizes)
        self.own = make_own(architecture, layer=None)

    def forward(
        self,
        ids_BT: Tensor,
        cache: Cache | None = None,
        *,
        positions_BT: Tensor | None = None,
        document_BT: Tensor | None = None,
    ) -> Tensor:
        if cache is not None and document_BT is not None:
            raise ValueError(
                "a cache does not say which document its keys are of: documents take the whole "
                "rows at once, without a cache"
            )

        num_new = ids_BT.shape[1]
        num_keys = num_new
        position_T = torch.arange(num_new, device=ids_BT.device)
        of_layers: list[LayerCache | None] = [None] * len(self.layers)
        if cache is not None:
            position_T = cache.positions(num_new, ids_BT.device)
            of_layers = [*cache.layers]
            cache.length += num_new
            num_keys = cache.length
        if positions_BT is not None:
            position_T = positions_BT

        if isinstance(self.added_positions, LearnedRows):
            first, last = 0, num_new - 1
            # Reading a tensor waits for a GPU, so only positions that are given are read.
            if cache is not None or positions_BT is not None:
                first, last = int(position_T.min()), int(position_T.max())
            start = self.rotary_emb.start
            self.added_positions.check(start + first, start + last)

        x_BTD = self.embed_tokens(ids_BT)
        x_BTD = self.added_positions.embed(x_BTD, self.rotary_emb.start + position_T)
        if self.own is not None:
            x_BTD = self.own.embed(x_BTD, self.rotary_emb.start + position_T).to(x_BTD.dtype)
        place_1E = torch.arange(num_keys, device=ids_BT.device)[None]
        bias_HTE = self.score_bias.scores({"position_BE": place_1E}, num_new)
        of_positions = self.rotary_emb(position_T)
        for layer, at, of_layer in zip(self.layers, of_positions, of_layers, strict=True):
            at = at._replace(bias_HTE=bias_HTE, document_BT=document_BT)
            if self.pe.code is not None:
                at = at._replace(position_T=self.rotary_emb.start + position_T)
            x_BTD = layer(x_BTD, at, of_layer)
        return self.last_norm(x_BTD)

    @property
    def num_positions(self) -> int | None:
        """The number of learned positions; None: positions are unlimited."""
        return self.added_positions.sizes.num_positions if self.pe.input == "learned" else None

    def last_norm(self, x_BTD: Tensor) -> Tensor:
        """Normalise the last layer's output.

        It is a method because torch.compile skips torch's own modules.
        """
        return self.norm(x_BTD)


class Decoder(nn.Module):
    """A language model: ids in, logits out; with targets, the summed cross-entropy.

    A model of real numbers returns predictions instead of logits, and the summed squared errors.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        config = architecture.model
        self.architecture = architecture
        self.model = Trunk(architecture)
        self.lm_head = nn.Linear(config.hidden_size, architecture.head_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.chunk_gradients = chunk_gradients

    def forward(
        self,
        ids_BT: Tensor,
        target_BT: Tensor | None = None,
        cache: Cache | None = None,
        *,
        positions_BT: Tensor | None = None,
        document_BT: Tensor | None = None,
        predicted_BP: Tensor | None = None,
    ) -> Tensor:
        """Return logits_BTV of `ids_BT`, or the loss of predicting `target_BT`.

        The loss is the sum over B and T of -log p(target), in nats and float32; for real numbers,
        the sum of their mean squared errors.

        Args:
            target_BT: or [B, T, O], O real numbers each.
            cache: earlier tokens, from which these ids continue; they are added to it.
            positions_BT: any real numbers; None: 0, 1, 2, ..., or those after the cache.
            document_BT: tokens attend to tokens of the same number only; None: to all. Not
                allowed with a cache.
            predicted_BP: the P places of each row that have targets, [B, P] like them; None: all.
        Raises:
            ValueError: both documents and a cache are given.
        """
        x_BTD = self.model(ids_BT, cache, positions_BT=positions_BT, document_BT=document_BT)
        x_BTD = at_places(x_BTD, predicted_BP)
        if target_BT is None:
            return self.lm_head(x_BTD)

        x_ND = x_BTD.flatten(0, 1)
        if self.architecture.num_outputs is not None:
            return summed_squares(x_ND, self.lm_head.weight, target_BT.flatten(0, 1))
        target_N = target_BT.flatten()
        return summed_cross_entropy(x_ND, self.lm_head.weight, target_N, self.chunk_gradients)

    def compile_parts(self) -> None:
        """Compile one block, used by every layer, the last norm and a chunk of the loss.

        This makes three graphs per sequence length, at any depth.
        """
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        last_norm = torch.compile(self.model.last_norm, dynamic=False)
        self.model.last_norm = last_norm  # type: ignore[method-assign]
        self.chunk_gradients = torch.compile(chunk_gradients, dynamic=False)

    def new_cache(self, pads_B: Tensor | None = None) -> Cache:
        """Return an empty cache; raise ConfigError if attention is bidirectional.

        Args:
            pads_B: the number of padding ids at the start of each row; None: none.
        """
        if not self.architecture.causal:
            allowed = "looks both ways: there is nothing to cache, and no next token to generate"
            raise ConfigError("train.objective", ..., allowed)
        model = self.architecture.model
        windows = [model.window_of(layer) for layer in range(model.num_hidden_layers)]
        return Cache(windows, pads_B)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every matrix from N(0, s^2): s = 0.02, or 0.02/sqrt(2 layers) onto the residual.

        LLaMA's matrices are drawn on the CPU from one generator, in the order of their names: a
        pure function of the sizes and the seed, independent of the device, the variant and the
        kind of attention. A kind takes those that match its names and shapes. Any other matrix
        draws from its own stream, so that it changes none of LLaMA's. (With other sizes, a changed
        shape changes every later draw.)
        """
        shared = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.model.layers))

        def drawn(name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
            std = residual_std if name.endswith(ONTO_RESIDUAL) else INIT_STD
            return torch.empty(shape).normal_(0.0, std, generator=generator)

        own = dict(self.named_parameters())
        of_llama = llama_matrices(self.architecture)
        for name, shape in sorted(of_llama.items()):
            matrix = drawn(name, shape, shared)
            if name in own and own[name].shape == shape:
                own.pop(name).copy_(matrix)

        for name, parameter in own.items():
            if parameter.ndim == 2 and not name.startswith(FREQUENCIES):
                parameter.copy_(drawn(name, parameter.shape, own_stream(seed, name)))


@functools.cache
def on_meta(architecture: Architecture) -> Decoder:
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
    named = on_meta(llama).named_parameters()
    return {name: matrix.shape for name, matrix in named if matrix.ndim == 2}


def own_stream(seed: int, name: str) -> torch.Generator:
    """Return a generator for one parameter, seeded by SHA-256 of the run's seed and its name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, as checkpoints store them and as hashes cover them.

    A tied head appears under both its names, as transformers' load_state_dict expects.
    """
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach() for name, parameter in named}


def llama_weights(decoder: Decoder) -> dict[str, Tensor]:
    """Return the weights whose names and shapes match transformers' LLaMA.

    Every variant has them, whatever other position parameters it learns.
    """
    shapes = llama_matrices(decoder.architecture)
    return {
        name: tensor
        for name, tensor in weights(decoder).items()
        if name.endswith(LLAMA_NORMS) or shapes.get(name) == tensor.shape
    }


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 over names, types, shapes and bytes, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
