"""Tests of bidirectional decoders: hidden tokens, and biases against transformers."""

from typing import Any

import pytest
import torch
from support.llama import llama_like
from support.models import SUBSETS, VOCAB, make_sizes, opinionated, tokens
from torch import Tensor
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from rope_exp.decoder import Decoder

LENGTH = 150  # past T5's largest distance


def make_decoder(*rotate: str, causal: bool = False, **changes: Any) -> Decoder:
    given = {"sizes": make_sizes(num_key_value_heads=4), "num_positions": LENGTH, **changes}
    return opinionated(*rotate, causal=causal, scale=8, **given).double().eval()


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
@torch.no_grad()
def test_only_q_and_o_tell_a_hidden_token_where_it_stands(sites: tuple[str, ...]) -> None:
    """Masked tokens of a row get different predictions only if q or o rotates.

    Positions with the same id have the same query unless q rotates, and the same output unless o
    does. They then stay equal in the next layer, even if k and v rotate.
    """
    decoder = make_decoder(*sites)
    ids_BT = tokens(2, 30)
    places = [3, 11, 12, 29]
    ids_BT[:, places] = VOCAB - 1
    hidden_BPV = decoder(ids_BT)[:, places]
    difference = float((hidden_BPV - hidden_BPV[:, :1]).abs().max())
    assert difference > 1e-2 if {"q", "o"} & set(sites) else difference < 1e-10


def biases(decoder: Decoder) -> Tensor:
    """Return the biases that transformers' modules add to each head's scores, [1, H, T, T]."""
    pe = decoder.architecture.pe
    heads = decoder.architecture.model.num_attention_heads
    if pe.bias == "none":
        return torch.zeros(1, heads, LENGTH, LENGTH, dtype=torch.float64)
    if pe.bias == "t5":
        config = T5Config(d_model=heads * 8, d_kv=8, num_heads=heads, is_decoder=False)
        theirs = T5Attention(config, has_relative_attention_bias=True).double()
        theirs.relative_attention_bias.weight.data.copy_(decoder.model.score_bias.weight)
        return theirs.compute_bias(LENGTH, LENGTH)

    # BLOOM's bias is the slope times the key's position, so position 1 holds the slope.
    slopes_H = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    place_T = torch.arange(LENGTH)
    distance_TT = (place_T - place_T[:, None]).abs()
    return -slopes_H[None, :, None, None] * distance_TT


@pytest.mark.parametrize("bias", ["none", "alibi", "t5"])
@torch.no_grad()
def test_both_ways_it_is_llama_without_a_causal_mask(bias: str) -> None:
    """Logits equal LLaMA's with an additive mask: zero, BLOOM's slopes, or T5's encoder bias."""
    decoder = make_decoder("q", "k", bias=bias)
    ids_BT = tokens(2, LENGTH)
    llama = llama_like(decoder.architecture.model, rope_theta=100.0).double().eval()
    assert not llama.load_state_dict(decoder.state_dict(), strict=False).missing_keys
    theirs = llama(ids_BT, attention_mask=biases(decoder).expand(2, -1, -1, -1))
    # Transformers computes angles in float32.
    assert float((decoder(ids_BT) - theirs.logits).abs().max()) < 1e-3
    causal = make_decoder("q", "k", bias=bias, causal=True)
    assert float((causal(ids_BT) - theirs.logits).abs().max()) > 0.1


@torch.no_grad()
def test_predicted_places_have_the_logits_of_all() -> None:
    decoder = make_decoder("q", "k", "v")
    ids_BT = tokens(3, 40)
    place_BP = torch.tensor([[0, 7, 39], [1, 2, 3], [5, 20, 30]])
    every_BTV = decoder(ids_BT)
    some_BPV = decoder(ids_BT, predicted_BP=place_BP)
    for row, places in enumerate(place_BP.tolist()):
        torch.testing.assert_close(some_BPV[row], every_BTV[row, places])
