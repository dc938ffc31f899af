"""Tests of the extension probe against decoders built by hand, and of its methods."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.models import BASE, normal, opinionated
from support.probes import HELD_OUT, LENGTH, ask
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.batches import validation_ids
from rope_exp.decoder import Decoder
from rope_exp.probes._windows import attentions
from rope_exp.probes.extension import extended, ntk_aware, yarn
from rope_exp.rope import frequencies
from rope_exp.rotary import LearnedRotary

# The probe reads only this window of eight training lengths.
LONG = validation_ids(HELD_OUT, 1, 8 * LENGTH)
FACTORS = (1, 2, 4, 8)


@cache
def of_sites(sites: str, bias: str = "none") -> dict[str, Any]:
    """Return the probe's result for one decoder, which several tests use."""
    return ask(opinionated(*sites, bias=bias), "extension")


@torch.no_grad()
def loss(decoder: Decoder, factor: int, **positions: Any) -> float:
    """Return the mean loss on the first `factor` training lengths of the long window."""
    ids = torch.from_numpy(LONG[:, : factor * LENGTH + 1])
    logits = decoder(ids[:, :-1], **positions).log_softmax(-1)
    return float(-logits.gather(2, ids[:, 1:, None]).mean())


@pytest.mark.parametrize("sites", ["qk", "vo", "qkvo", "k"])
def test_interpolation_divides_positions(sites: str) -> None:
    """In all pairs of sites that rotate, position m rotates as m/s did."""
    found = of_sites(sites)
    assert found["lengths"] == [16, 32, 64, 128]
    assert found["num_windows"] == 1
    pairs = "".join(pair for pair in ("qk", "vo") if {*pair} & {*sites})
    for factor, at_length in zip(FACTORS, found["interpolation"][pairs], strict=True):
        position_1T = torch.arange(factor * LENGTH)[None] / factor
        expected = loss(opinionated(*sites), factor, position_BT=position_1T)
        assert at_length == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("pairs", "bias"), [("qk", "none"), ("vo", "none"), ("qkvo", "none"), ("qk", "alibi")]
)
def test_yarn_also_sharpens_scores(pairs: str, bias: str) -> None:
    """q and k are multiplied if they are extended, and v, o and biases never are."""
    for factor, at_length in zip(FACTORS, of_sites("qkvo", bias)["yarn"][pairs], strict=True):
        decoder = opinionated(*"qkvo", trainable=True, bias=bias)
        with torch.no_grad():
            rotary = decoder.model.rotary_emb
            assert isinstance(rotary, LearnedRotary)
            for pair, name in rotary.learned.items():
                theta_F = rotary.get_parameter(name)
                if pair in pairs:
                    theta_F.copy_(yarn(theta_F, factor, LENGTH, BASE))
            for layer in attentions(decoder) if "qk" in pairs else ():
                for name in ("q_proj.weight", "k_proj.weight"):
                    layer.get_parameter(name).mul_(0.1 * math.log(factor) + 1)
        assert at_length == pytest.approx(loss(decoder, factor), abs=1e-5)


def test_as_trained_is_the_decoder_itself() -> None:
    """All methods equal the trained decoder at its own length, and all differ at the longest."""
    found = of_sites("qkvo")
    expected = [loss(opinionated(*"qkvo"), factor) for factor in FACTORS]
    assert found["as_trained"] == pytest.approx(expected, abs=1e-5)
    several = {
        (method, pairs): losses
        for method in ("interpolation", "ntk_aware", "yarn")
        for pairs, losses in found[method].items()
    }
    assert len(several) == 9
    assert {losses[0] for losses in several.values()} == {found["as_trained"][0]}
    assert len({losses[-1] for losses in [*several.values(), found["as_trained"]]}) == 10


def test_a_kind_without_a_softmax_has_no_scale() -> None:
    """Without a softmax to scale, YaRN changes only the frequencies."""
    decoder = opinionated("q", "k", attn=RetentionConfig())
    ids = torch.from_numpy(LONG[:, :33])
    with torch.no_grad(), extended(decoder, "yarn", "qk", 2, LENGTH):
        theta_F = decoder.model.rotary_emb.theta("qk")
        found = decoder(ids)
    other = opinionated("q", "k", attn=RetentionConfig(), trainable=True)
    with torch.no_grad():
        other.model.rotary_emb.get_parameter("inv_freq").copy_(theta_F)
        torch.testing.assert_close(found, other(ids))


TRAINED = 2048

HALVES = st.integers(2, 64)
STRETCHES = st.floats(1, 64)
BASES = st.floats(1e3, 1e6)


def transformers_theta(kind: str, half: int, length: int | None = None, **rope: Any) -> Tensor:
    config = LlamaConfig(
        hidden_size=4 * half,
        num_attention_heads=2,
        max_position_embeddings=rope.get("original_max_position_embeddings", TRAINED),
        rope_parameters={"rope_type": kind, **rope},
    )
    theta_F: Tensor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)[0]
    return theta_F


@given(HALVES, BASES, STRETCHES)
def test_ntk_aware_is_transformers_dynamic(half: int, base: float, factor: float) -> None:
    """Transformers' base grows with the length; at factor 1 only the length sets the extension."""
    length = math.ceil(factor * TRAINED)
    found_F = ntk_aware(frequencies(2 * half, base), length / TRAINED)
    expected_F = transformers_theta("dynamic", half, length, rope_theta=base, factor=1.0)
    torch.testing.assert_close(found_F, expected_F, rtol=2e-5, atol=0)


# With a small base, one turn lies past all features, so the ramp's end is clipped to n - 1.
@example(8, 10.0, 4.0, 1024)
@example(16, 20.0, 4.0, 3000)
@example(4, 5.0, 4.0, 300)
@given(HALVES, BASES, STRETCHES, st.integers(8, 8192))
def test_yarn_is_transformers_yarn(half: int, base: float, factor: float, trained: int) -> None:
    found_F = yarn(frequencies(2 * half, base), factor, trained, base)
    rope: dict[str, Any] = {
        "rope_theta": base,
        "factor": factor,
        "original_max_position_embeddings": trained,
    }
    expected_F = transformers_theta("yarn", half, **rope)
    torch.testing.assert_close(found_F, expected_F, rtol=2e-5, atol=0)


def test_where_all_pairs_turn_often_yarn_changes_none() -> None:
    """The ramp's limits cross; transformers' ramp is then reversed and interpolates all pairs."""
    theta_F = frequencies(16, 2.0)
    assert torch.equal(yarn(theta_F, 4.0, 8192, 2.0), theta_F)


@pytest.mark.parametrize(
    "extend",
    [lambda theta: ntk_aware(theta, 4.0), lambda theta: yarn(theta, 4.0, TRAINED, 1e4)],
    ids=["ntk_aware", "yarn"],
)
def test_frequencies_of_layers_are_extended_one_by_one(extend: Callable[[Tensor], Tensor]) -> None:
    """A pair is slowed according to its index, whatever frequency it has learned."""
    theta_LGF = frequencies(16, 1e4, torch.float64) * normal(3, 2, 1, seed=4).exp()
    expected = torch.stack([torch.stack([*map(extend, layer)]) for layer in theta_LGF])
    torch.testing.assert_close(extend(theta_LGF), expected)
