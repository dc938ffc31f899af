"""Tests of a decoder's added positions and biases against GPT-2, Marian, BLOOM and T5."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import (
    VOCAB,
    bias_of,
    make_architecture,
    normal,
    tokens,
)
from transformers import GPT2Config, GPT2Model, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from rope_exp.decoder import Decoder

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
