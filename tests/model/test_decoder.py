"""Tests of the decoder: equality with LLaMA for QK, causality, initial weights, the loss."""

import math
from dataclasses import replace

import pytest
import torch
from support.models import (
    BASE,
    SUBSETS,
    VOCAB,
    fed,
    keys_of,
    make_architecture,
    make_decoder,
    make_pe,
    make_sizes,
    num_numbers,
    tokens,
)
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rope_exp.config import Architecture
from rope_exp.decoder import Decoder, weights, weights_sha256


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
def test_no_logit_depends_on_a_later_token(sites: tuple[str, ...]) -> None:
    decoder = make_decoder(*sites)
    ids_BT = tokens(1, 8)
    changed_BT = ids_BT.clone()
    changed_BT[:, 5:] = (changed_BT[:, 5:] + 1) % VOCAB

    assert torch.equal(decoder(ids_BT)[:, :5], decoder(changed_BT)[:, :5])
    assert not torch.equal(decoder(ids_BT)[:, 5:], decoder(changed_BT)[:, 5:])


@torch.no_grad()
def test_windows_by_layer_are_those_of_qwen3() -> None:
    """Three of four layers attend to two keys, in training and from a cache."""
    sizes = make_sizes(
        num_hidden_layers=4, qk_norm=True, window=2, window_layers=(1, 1, 1, 0), head_dim=8
    )
    decoder = make_decoder("q", "k", sizes=sizes)
    config = Qwen3Config(
        **keys_of(sizes),
        head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        sliding_window=2,
        use_sliding_window=True,
    )
    theirs = Qwen3ForCausalLM(config).eval()
    theirs.load_state_dict(weights(decoder))
    ids_BT = tokens(2, 12)
    expected = theirs(ids_BT).logits
    torch.testing.assert_close(decoder(ids_BT), expected, rtol=0, atol=1e-5)
    everywhere = make_decoder("q", "k", sizes=replace(sizes, window_layers=None))
    assert not torch.allclose(everywhere(ids_BT), expected, atol=1e-4)

    cache = decoder.new_cache()
    cached = fed(decoder, ids_BT, [5, 1, 1, 5], cache)
    torch.testing.assert_close(cached, expected, rtol=0, atol=1e-5)
    # The last five queries attend to one key before the first of them.
    assert [layer.rows["k"].shape[1] for layer in cache] == [6, 6, 6, 12]


def test_documents_beside_a_cache_are_refused() -> None:
    """Later tokens would attend to other documents' keys."""
    decoder = make_decoder("q", "k")
    cache = decoder.new_cache()
    with pytest.raises(ValueError, match="a cache has no documents"):
        decoder(tokens(1, 12), cache=cache, document_BT=torch.zeros(1, 12))
    assert num_numbers(cache) == 0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_qk_is_llama(tied: bool, key_heads: int) -> None:
    """Logits and gradients equal LLaMA's, and checkpoints load in both directions."""
    sizes = make_sizes(num_key_value_heads=key_heads, tie_word_embeddings=tied)
    ours = make_decoder("q", "k", sizes=sizes, base=10000.0)
    theirs = LlamaForCausalLM(LlamaConfig(**keys_of(sizes)))
    theirs.load_state_dict(ours.state_dict())

    ids_BT = tokens(2, 33)
    our_logits = ours(ids_BT[:, :-1])
    their_logits = theirs(ids_BT[:, :-1]).logits
    assert float((our_logits - their_logits).detach().abs().max()) < 2e-5

    ours(ids_BT[:, :-1], ids_BT[:, 1:]).backward()
    flat = their_logits.flatten(0, 1)
    nn.functional.cross_entropy(flat, ids_BT[:, 1:].flatten(), reduction="sum").backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        gradient = expected[name]
        assert parameter.grad is not None
        assert gradient is not None
        scale = max(float(gradient.abs().max()), 1.0)
        assert float((parameter.grad - gradient).abs().max()) < 1e-4 * scale, name

    back = Decoder(make_architecture("q", "k", sizes=sizes, base=10000.0))
    back.load_state_dict(theirs.state_dict())
    assert weights_sha256(weights(back)) == weights_sha256(weights(ours))


def test_all_variants_of_a_seed_share_their_initial_weights() -> None:
    hashes = {weights_sha256(weights(make_decoder(*subset, seed=3))) for subset in SUBSETS}
    assert len(hashes) == 1
    assert hashes != {weights_sha256(weights(make_decoder(seed=4)))}


def test_a_new_matrix_draws_from_its_own_stream() -> None:
    """It depends only on the seed and its name, and moves none of LLaMA's."""
    ours, again, other = (
        weights(make_decoder(*sites, bias="t5", seed=seed))
        for sites, seed in (("qk", 5), ("", 5), ("", 6))
    )
    name = "model.score_bias.weight"
    table = ours.pop(name)
    assert torch.equal(table, again[name])
    assert not torch.equal(table, other[name])
    assert math.isclose(float(table.std()), 0.02, rel_tol=0.2)
    assert weights_sha256(ours) == weights_sha256(weights(make_decoder("q", "k", seed=5)))


def test_the_hash_of_weights_sees_one_bit_and_one_name() -> None:
    tensors = {name: tensor.clone() for name, tensor in weights(make_decoder()).items()}
    hashes = {weights_sha256(tensors)}
    tensors["x"] = tensors.pop("lm_head.weight")
    hashes.add(weights_sha256(tensors))
    tensors["x"].view(torch.int32)[0, 0] ^= 1
    assert len(hashes | {weights_sha256(tensors)}) == 3


def test_initial_weights_have_the_stated_spread() -> None:
    sizes = make_sizes(
        hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_key_value_heads=4
    )
    decoder = Decoder(Architecture(sizes, make_pe(), 512))
    decoder.initialise(0)

    for name, tensor in weights(decoder).items():
        if tensor.ndim == 2:
            residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            expected = 0.02 / math.sqrt(16) if residual else 0.02
            assert math.isclose(float(tensor.std()), expected, rel_tol=0.03), name
