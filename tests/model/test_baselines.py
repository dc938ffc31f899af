"""Tests of a decoder's added positions and biases against GPT-2, Marian, BLOOM and T5."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.kinds import KINDS
from support.models import (
    VOCAB,
    bias_of,
    make_architecture,
    make_pe,
    make_sizes,
    normal,
    opinionated,
    tokens,
)
from torch import Tensor
from transformers import GPT2Config, GPT2Model, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.errors import ConfigError
from rope_exp.sections import Kind

LENGTH = 40
WIDTH = 32
HEADS = 4


def decoder_of(*rotate: str, causal: bool = True, **changes: Any) -> Decoder:
    architecture = make_architecture(*rotate, **changes)
    decoder = Decoder(replace(architecture, causal=causal, num_positions=LENGTH))
    decoder.initialise(0)
    return decoder.double().eval()


@torch.no_grad()
def test_learned_positions_are_gpt_2s() -> None:
    """The first block's input is the sum of the token's row and the position's row."""
    ours = decoder_of(input="learned").model
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=WIDTH, n_layer=1, n_head=HEADS, embd_pdrop=0.0
    )
    theirs = GPT2Model(config).double().eval()
    theirs.wte.weight.copy_(ours.embed_tokens.weight)
    theirs.wpe.weight.copy_(ours.added_positions.weight)

    ids_BT = tokens(2, LENGTH)
    expected = theirs(ids_BT, output_hidden_states=True).hidden_states[0]
    read = ours.added_positions.embed(ours.embed_tokens(ids_BT), torch.arange(LENGTH))
    assert torch.equal(read, expected)


@torch.no_grad()
def test_sinusoids_are_marians() -> None:
    added = decoder_of(input="sinusoidal", input_scale=1.0).model.added_positions
    theirs = MarianSinusoidalPositionalEmbedding(LENGTH, WIDTH)
    theirs.weight.copy_(theirs.create_weight())
    ours = added.embed(torch.zeros(1, LENGTH, WIDTH), torch.arange(LENGTH))[0]
    assert float((ours - theirs.weight).abs().max()) < 1e-6


@torch.no_grad()
def test_a_bias_weighs_as_blooms_does() -> None:
    """BLOOM adds m j to the scores of query i, which gives the same softmax as -m (i - j)."""
    bias_HTT = bias_of(decoder_of(bias="alibi"), LENGTH)
    bloom = build_alibi_tensor(torch.ones(1, LENGTH), HEADS, torch.float64)
    score_HTT = normal(HEADS, LENGTH, LENGTH)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    weights = [
        (score_HTT + added).masked_fill(hidden, -math.inf).softmax(-1)
        for added in (bias_HTT, bloom)
    ]
    assert float((weights[0] - weights[1]).abs().max()) < 1e-7


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_a_learned_bias_is_t5s(causal: bool) -> None:
    ours = decoder_of(bias="t5", causal=causal)
    config = T5Config(d_model=WIDTH, num_heads=HEADS, d_kv=8, is_decoder=causal)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    theirs.relative_attention_bias.weight.copy_(ours.model.score_bias.weight)
    bias_HTT = bias_of(ours, 300)
    visible = torch.ones(300, 300, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    difference = (bias_HTT - theirs.compute_bias(300, 300)[0]).masked_fill(~visible, 0.0)
    assert float(difference.abs().max()) == 0


@pytest.mark.parametrize("attn", [kind for kind in KINDS if kind.keeps_keys], ids=str)
@pytest.mark.parametrize("bias", ["alibi", "t5"])
@torch.no_grad()
def test_kinds_with_keys_take_a_bias(attn: Kind, bias: str) -> None:
    """Cached decoding equals the full forward pass, and the bias changes the logits."""
    groups = 2 if attn.takes_heads else HEADS
    sizes = make_sizes(num_key_value_heads=groups)

    def logits(**changes: Any) -> tuple[Tensor, Tensor]:
        decoder = opinionated("q", "k", attn=attn, sizes=sizes, **changes).double()
        cache = decoder.new_cache()
        parts = [decoder(part, cache=cache) for part in tokens(2, 12).split([5, 1, 6], dim=1)]
        return decoder(tokens(2, 12)), torch.cat(parts, dim=1)

    whole, cached = logits(bias=bias)
    plain, _ = logits()
    assert float((whole - cached).abs().max()) < 1e-10
    assert float((whole - plain).abs().max()) > 1e-3


@pytest.mark.parametrize("attn", [kind for kind in KINDS if not kind.keeps_keys], ids=str)
def test_a_state_has_no_scores_to_add_to(attn: Kind) -> None:
    with pytest.raises(ConfigError, match=r"pe.bias=alibi: .* has no scores of pairs"):
        RunConfig(pe=make_pe(bias="alibi"), attn=attn)


@torch.no_grad()
def test_both_ways_without_positions_is_a_bag_of_words() -> None:
    """NoPE is permutation-equivariant; a bias, an added position or a rotation is not."""
    ids_BT = tokens(1, LENGTH)
    order_T = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    for changes in ({}, {"bias": "t5"}, {"input": "learned"}, {"rotate": ("v", "o")}):
        rotate = changes.pop("rotate", ())  # type: ignore[call-overload]
        decoder = opinionated(*rotate, causal=False, num_positions=LENGTH, **changes).double()
        whole = decoder(ids_BT)[:, order_T]
        difference = float((decoder(ids_BT[:, order_T]) - whole).abs().max())
        is_bag = not rotate and not changes
        assert (difference < 1e-10) == is_bag
