"""Small decoders, their inputs, and rotations written out as dense matrices."""

import dataclasses
import itertools
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rope_exp.attention import Cache, Positions, Tables
from rope_exp.config import Architecture
from rope_exp.decoder import Decoder
from rope_exp.rope import angles, frequencies
from rope_exp.sections import SOFTMAX, AttentionConfig, ModelConfig, PeConfig

VOCAB = 61
BASE = 100.0
SUBSETS = [subset for size in range(5) for subset in itertools.combinations("qkvo", size)]


def make_sizes(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "name": "test",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return ModelConfig(**(sizes | changes))


SIZES = make_sizes()


def make_pe(*rotate: Any, **changes: Any) -> PeConfig:
    values: dict[str, Any] = {"name": "test", "rotate": rotate, "base": BASE}
    return PeConfig(**(values | changes))


def make_architecture(*rotate: str, sizes: ModelConfig = SIZES, **changes: Any) -> Architecture:
    return Architecture(sizes, make_pe(*rotate, **changes), VOCAB)


def make_decoder(
    *rotate: str, seed: int = 0, sizes: ModelConfig = SIZES, **changes: Any
) -> Decoder:
    decoder = Decoder(make_architecture(*rotate, sizes=sizes, **changes))
    decoder.initialise(seed)
    return decoder


def opinionated(
    *rotate: str,
    attn: AttentionConfig = SOFTMAX,
    sizes: ModelConfig = SIZES,
    scale: float = 12,
    pe: PeConfig | None = None,
    **changes: Any,
) -> Decoder:
    """Return a decoder with attention far from uniform, so that positions affect its loss.

    `changes` are fields of the variant, or of the architecture.
    """
    fields = {field.name for field in dataclasses.fields(Architecture)}
    of_architecture = {key: changes.pop(key) for key in fields & changes.keys()}
    pe = pe or make_pe(*rotate, **changes)
    vocab_size = of_architecture.pop("vocab_size", VOCAB)
    decoder = Decoder(Architecture(sizes, pe, vocab_size, attn, **of_architecture))
    decoder.initialise(0)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim == 2 and "rotary" not in name:
                parameter.mul_(scale)
    return decoder


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def deviation(ours: Tensor, expected: Tensor) -> float:
    return float((ours - expected).abs().max())


def make_tables(
    num_positions: int,
    dim: int,
    *,
    base: float = BASE,
    start: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tables:
    angle_TF = angles(frequencies(dim, base, dtype), start + torch.arange(num_positions))
    return angle_TF.cos(), angle_TF.sin()


def make_positions(
    num_positions: int, dim: int, *, base_vo: float | None = None, **changes: Any
) -> Positions:
    tables = make_tables(num_positions, dim, **changes)
    if base_vo is None:
        return Positions(tables)
    return Positions(tables, make_tables(num_positions, dim, **(changes | {"base": base_vo})))


def keys_of(sizes: ModelConfig) -> dict[str, Any]:
    """Return these sizes under the keys of transformers' configs."""
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
    )
    keys = {name: getattr(sizes, name) for name in names}
    return {"vocab_size": VOCAB, "attn_implementation": "eager", **keys}


def bias_of(decoder: Decoder, length: int) -> Tensor:
    """Return the bias that a decoder adds to attention scores at this length, [H, T, T]."""
    kept = {"position_BE": torch.arange(length)[None]}
    assert decoder.model.score_bias is not None
    bias_HTT = decoder.model.score_bias.scores(kept, length)
    assert bias_HTT is not None
    return bias_HTT


@cache
def rotation_matrix(position: int, dim: int, base: float = BASE) -> Tensor:
    """Return R_m as a dense matrix, written out pair by pair."""
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    half = dim // 2
    for f in range(half):
        angle = position * base ** (-2 * f / dim)
        matrix[f, f] = math.cos(angle)
        matrix[f, f + half] = -math.sin(angle)
        matrix[f + half, f] = math.sin(angle)
        matrix[f + half, f + half] = math.cos(angle)
    return matrix


def fed(decoder: Decoder, ids_BT: Tensor, parts: list[int], cache: Cache | None = None) -> Tensor:
    """Return the logits of ids that are fed to a cache in parts."""
    cache = cache or decoder.new_cache()
    return torch.cat([decoder(part, cache=cache) for part in ids_BT.split(parts, dim=1)], dim=1)


def num_numbers(cache: Cache) -> int:
    kept = [[*layer.rows.values(), *layer.states.values()] for layer in cache]
    return sum(tensor.numel() for layer in kept for tensor in layer)
