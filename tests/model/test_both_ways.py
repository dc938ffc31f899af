"""Tests of bidirectional decoders: hidden tokens, and biases against transformers."""

from typing import Any

import pytest
import torch
from support.models import SUBSETS, VOCAB, bias_of, keys_of, make_sizes, opinionated, tokens
from transformers import LlamaConfig, LlamaForCausalLM

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


@pytest.mark.parametrize("bias", ["none", "alibi", "t5"])
@torch.no_grad()
def test_both_ways_it_is_llama_without_a_causal_mask(bias: str) -> None:
    """Logits equal LLaMA's with an additive mask."""
    decoder = make_decoder("q", "k", bias=bias)
    ids_BT = tokens(2, LENGTH)
    keys = keys_of(decoder.architecture.model) | {"rope_theta": 100.0}
    config = LlamaConfig(**keys)
    llama = LlamaForCausalLM(config).double().eval()
    assert not llama.load_state_dict(decoder.state_dict(), strict=False).missing_keys
    mask_BHTT = torch.zeros(2, 4, LENGTH, LENGTH, dtype=torch.float64)
    if bias != "none":
        mask_BHTT += bias_of(decoder, LENGTH)
    theirs = llama(ids_BT, attention_mask=mask_BHTT)
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
    some_BPV = decoder(ids_BT, place_BP=place_BP)
    for row, places in enumerate(place_BP.tolist()):
        torch.testing.assert_close(some_BPV[row], every_BTV[row, places])
