"""Tests of score biases and input positions against transformers and published values."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import VOCAB, bias_of, make_architecture, make_pe, tokens
from torch import Tensor
from transformers import GPT2Config, GPT2Model, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from rope_exp.decoder import Decoder
from rope_exp.position._encoding import Sizes
from rope_exp.position.alibi import alibi_slopes
from rope_exp.position.sinusoidal import Sinusoids
from rope_exp.position.t5 import t5_buckets


@pytest.mark.parametrize("num_heads", range(1, 34))
def test_slopes_are_blooms(num_heads: int) -> None:
    """BLOOM's tensor is the slope times the key's position, so position 1 holds the slope."""
    bloom = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), num_heads, torch.float32)
    torch.testing.assert_close(alibi_slopes(num_heads), bloom[:, 0, 1])


@given(st.integers(-500, 500), st.floats(0, 0.999))
def test_a_distance_between_counts_as_the_lower(offset: int, more: float) -> None:
    whole = torch.tensor([float(offset)])
    farther = whole + math.copysign(more, offset)
    expected = t5_buckets(torch.tensor([offset]), bidirectional=True)
    assert torch.equal(t5_buckets(whole, bidirectional=True), expected)
    if offset:
        assert torch.equal(t5_buckets(farther, bidirectional=True), expected)


def sinusoids(position_T: Tensor, dim: int) -> Tensor:
    sizes = Sizes(dim, 1, 1, dim, 1, 0, True, None)
    encoding = Sinusoids(make_pe(input="sinusoidal", input_scale=1.0), sizes)
    return encoding.embed(torch.zeros(1, len(position_T), dim), position_T)[0]


@pytest.mark.parametrize("dim", [2, 6, 64])
def test_sinusoids_are_marians(dim: int) -> None:
    theirs = MarianSinusoidalPositionalEmbedding(50, dim).create_weight()
    torch.testing.assert_close(sinusoids(torch.arange(50), dim), theirs)


def test_large_positions_keep_their_fractions() -> None:
    """Unix times a quarter second apart give the same float32 products as positions 0 and 0.25."""
    position_T = torch.tensor([1.7e9, 1.7e9 + 0.25], dtype=torch.float64)
    # Inner products depend only on the distance between sinusoids' positions.
    products = [
        x_TD @ x_TD.T for x_TD in (sinusoids(t, 8) for t in (position_T, position_T - 1.7e9))
    ]
    torch.testing.assert_close(*products, atol=1e-6, rtol=0)


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
    theirs.wpe.weight.copy_(ours.get_parameter("added_positions.weight"))

    ids_BT = tokens(2, LENGTH)
    expected = theirs(ids_BT, output_hidden_states=True).hidden_states[0]
    [added] = ours.outside_layers
    read = added.embed(ours.embed_tokens(ids_BT), torch.arange(LENGTH))
    assert torch.equal(read, expected)


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_a_learned_bias_is_t5s(causal: bool) -> None:
    ours = decoder_of(bias="t5", causal=causal)
    config = T5Config(d_model=WIDTH, num_heads=HEADS, d_kv=8, is_decoder=causal)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    table = ours.get_parameter("model.score_bias.weight")
    theirs.relative_attention_bias.weight.copy_(table)
    bias_HTT = bias_of(ours, 300)
    visible = torch.ones(300, 300, dtype=torch.bool)
    visible = visible.tril() if causal else visible
    difference = (bias_HTT - theirs.compute_bias(300, 300)[0]).masked_fill(~visible, 0.0)
    assert float(difference.abs().max()) == 0


def test_alibi_falls_to_both_sides() -> None:
    place_T = torch.arange(LENGTH)
    expected = -alibi_slopes(HEADS)[:, None, None] * (place_T[:, None] - place_T).abs()
    bias_HTT = bias_of(decoder_of(bias="alibi", causal=False), LENGTH)
    torch.testing.assert_close(bias_HTT, expected.double())
