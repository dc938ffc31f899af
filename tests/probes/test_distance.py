"""Tests of the distance probe, and of its bound, mean weights and kappa, against closed forms."""

import cmath
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import probes
from support.kinds import KINDS
from support.models import VOCAB, make_sizes, normal, opinionated, tokens
from support.probes import LENGTH
from torch import Tensor

from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.shared import Config as SharedConfig
from rope_exp.decoder import Decoder
from rope_exp.probes._windows import attentions
from rope_exp.probes.distance import attention_by_distance, decay_bound, kappa, weighed
from rope_exp.rope import angles, frequencies, rotate

M = [0, 1, 2, 3, 4, 6]
HELD_OUT = np.random.default_rng(0).integers(0, VOCAB, size=20 * LENGTH + 1)

UNGROUPED = make_sizes(num_key_value_heads=4)
LATENT = LatentConfig(kv_rank=10, nope_dim=6, rope_dim=4, value_dim=5)
SHARED = SharedConfig(form="s2", groups=2, nope_dim=6, rope_dim=4)


def ask(decoder: Decoder, held_out: np.ndarray = HELD_OUT) -> dict[str, Any]:
    return probes.ask(decoder, "distance", held_out)


def watch(decoder: Decoder, ids: Tensor, number: int) -> dict[str, Tensor]:
    """Return the weights of a layer, as `weighed` passes them on, its values and its outputs."""
    layer = attentions(decoder)[number]
    attend = layer.attend
    seen = {}

    def recorded(q: Tensor, k: Tensor, values: Tensor, *others: Any) -> Tensor:
        seen["values"] = values
        seen["outputs"] = attend(q, k, values, *others)
        return seen["outputs"]

    def see(_: Any, weights_BHTT: Tensor, *_means: Tensor) -> None:
        seen["weights"] = weights_BHTT

    with (
        torch.no_grad(),
        patch.object(layer, "attend", recorded),
        patch.object(layer, "attend", weighed(layer, see)),
    ):
        seen["logits"] = decoder(ids)
    return seen


@pytest.mark.parametrize(
    ("changes", "num_keys"),
    [({}, range(9, 17)), ({"causal": False}, [16]), ({"sizes": make_sizes(window=3)}, [3])],
    ids=["causal", "both ways", "window"],
)
def test_queries_of_zero_weigh_all_keys_alike(
    changes: dict[str, Any], num_keys: Sequence[int]
) -> None:
    """With queries of 0, A(m) equals the probe's `uniform` reference in every layer."""
    decoder = opinionated("q", "k", **changes)
    with torch.no_grad():
        for layer in attentions(decoder):
            layer.get_parameter("q_proj.weight").zero_()
    found = ask(decoder)
    assert found["m"] == M
    assert list(found["attention"]) == ["0", "1"]
    for by_distance in found["attention"].values():
        assert by_distance == pytest.approx(found["uniform"], rel=1e-4)
    reach = 3 if "sizes" in changes else LENGTH
    expected = [np.reciprocal(num_keys, dtype=float).mean() * (m < reach) for m in M]
    assert found["uniform"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fraction": 0.5, "start": 7},
        {"sizes": make_sizes(qk_norm=True), "trainable": "log", "trainable_scope": "head"},
        {"trainable": True, "trainable_scope": "layer"},
        {"attn": LATENT, "sizes": UNGROUPED, "trainable": True, "trainable_scope": "head"},
        {"attn": SHARED, "sizes": UNGROUPED},
    ],
    ids=["softmax", "fraction", "heads", "layers", "latent", "shared"],
)
def test_kappa_is_the_score_where_all_tokens_are_alike(changes: dict[str, Any]) -> None:
    """Equal tokens have equal values, so every query and key equals its mean in both layers. The
    logarithm of two weights' ratio is then the difference of their kappas.
    """
    decoder = opinionated("q", "k", **changes)
    with torch.no_grad():
        for parameter in decoder.model.rotary_emb.parameters():
            shape = parameter.shape
            parameter.add_(torch.linspace(-0.2, 0.3, shape.numel()).view(shape))

    alike = np.full_like(HELD_OUT, 3)
    found = ask(decoder, alike)["kappa"]
    for layer in (0, 1):
        weights_BHTT = watch(decoder, torch.from_numpy(alike[None, :LENGTH]), layer)["weights"]
        expected_HM = weights_BHTT[0, :, -1].double().log().flip(1)[:, M]
        kappa_HM = torch.tensor(found[str(layer)]).double()
        moved_HM = kappa_HM - kappa_HM[:, :1]
        expected_HM = expected_HM - expected_HM[:, :1]
        torch.testing.assert_close(moved_HM, expected_HM, atol=2e-3, rtol=2e-3)
        assert moved_HM.abs().amax(dim=1).min() > 0.01


def test_kappa_and_bound_are_of_layers_that_rotate_both() -> None:
    decoder = opinionated("q", "k", layers=(0, 1), trainable=True, trainable_scope="layer")
    with torch.no_grad():
        decoder.model.rotary_emb.get_parameter("inv_freq")[0] *= 0.1
    found = ask(decoder)
    assert list(found["kappa"]) == ["1"]
    assert len(found["kappa"]["1"]) == 4
    bound_M = decay_bound(frequencies(8, 100.0), torch.tensor(M))
    assert found["bound"] == pytest.approx(bound_M.tolist(), rel=1e-5)
    assert math.isclose(found["bound"][0], 2.5)


@pytest.mark.parametrize("sites", ["", "q", "k", "vo", "qvo"])
def test_without_both_there_is_neither_bound_nor_kappa(sites: str) -> None:
    assert set(ask(opinionated(*sites))) == {"m", "attention", "uniform"}


KEEPING_KEYS = [attn for attn in KINDS if attn.keeps_keys]
SCORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "both ways": {"causal": False},
    "window": {"window": 4},
    "t5": {"bias": "t5"},
    "alibi both ways": {"bias": "alibi", "causal": False},
    "frequencies of heads": {"trainable": True, "trainable_scope": "head"},
}


@pytest.mark.parametrize("scored", SCORED)
def test_weights_times_values_are_the_output(scored: str) -> None:
    """Every kind is covered, with every mask and bias. Weights sum to 1, or to less with a sink."""
    for attn in KEEPING_KEYS:
        changes = dict(SCORED[scored])
        sizes = make_sizes(window=changes.pop("window", None))
        if not attn.takes_heads:
            sizes = replace(sizes, num_key_value_heads=4)
        decoder = opinionated("q", "k", attn=attn, sizes=sizes, **changes).double()
        found = watch(decoder, tokens(2, 13), 1)

        v_BTGV = found["values"]
        v_BTHV = v_BTGV.repeat_interleave(4 // v_BTGV.shape[2], dim=2)
        expected = torch.einsum("bhij,bjhv->bihv", found["weights"], v_BTHV)
        torch.testing.assert_close(found["outputs"], expected)
        sums_BHT = found["weights"].sum(-1)
        if getattr(attn, "sink", False):
            assert float(sums_BHT.max()) < 1
        else:
            torch.testing.assert_close(sums_BHT, torch.ones(2, 4, 13).double())
        assert found["weights"].min() >= 0


def test_weights_are_exact_where_a_run_is_not() -> None:
    """Under bf16 autocast the weights are float32, and the decoder's own output is unchanged."""
    decoder = opinionated("q", "k")
    ids = tokens(2, 13)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        usual = decoder(ids)
        found = watch(decoder, ids, 0)

    assert torch.equal(found["logits"], usual)
    assert found["outputs"].dtype == torch.bfloat16
    assert found["weights"].dtype == torch.float32
    torch.testing.assert_close(found["weights"].sum(-1), torch.ones(2, 4, 13), rtol=0, atol=1e-6)


PUBLISHED = {0: 32.5, 1: 31.5382, 2: 28.956, 8: 19.8174, 64: 10.0899, 256: 6.5431}


def test_the_bound_meets_the_published_values() -> None:
    theta_F = frequencies(128, 10000.0, torch.float64)
    found = decay_bound(theta_F, torch.tensor([*PUBLISHED]))
    assert found.tolist() == pytest.approx([*PUBLISHED.values()], abs=5e-5)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.floats(-1e4, 1e4))
def test_the_bound_is_a_mean_of_partial_sums(seed: int, count: int, distance: float) -> None:
    """The reference adds up any frequencies one by one; those of several layers are batched."""
    theta_LF = normal(2, count, seed=seed)
    found_LM = decay_bound(theta_LF, torch.tensor([distance], dtype=torch.float64))
    for theta_F, found_M in zip(theta_LF.tolist(), found_LM.tolist(), strict=True):
        sums = list(itertools.accumulate(cmath.exp(1j * distance * theta) for theta in theta_F))
        assert found_M == pytest.approx([sum(map(abs, sums)) / count], abs=1e-7)


@pytest.mark.parametrize("length", [2, 3, 8, 9])
def test_weights_are_averaged_over_late_queries(length: int) -> None:
    """The reference averages query by query over i >= T/2, for each m < T/2."""
    weights_BHTT = normal(2, 3, length, length)
    late = [i for i in range(length) if i >= length / 2]
    expected = []
    for distance in range(math.ceil(length / 2)):
        found = [weights_BHTT[:, :, i, i - distance] for i in late]
        expected.append(float(torch.stack(found).mean()))
    assert attention_by_distance(weights_BHTT).tolist() == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 10_000), st.integers(0, 300))
def test_kappa_is_the_score_of_the_means_at_any_place(seed: int, distance: int) -> None:
    """kappa(m) is the mean over i of (R_i q)^T (R_{i-m} k) / sqrt(K), which is equal at every i."""
    theta_F = frequencies(8, 100.0, torch.float64)
    q_HK, k_HK = normal(2, 3, 8, seed=seed)

    def turned(x_HK: Tensor, position_T: Tensor) -> Tensor:
        angle_TF = angles(theta_F, position_T)
        return rotate(x_HK.expand(1, 20, -1, -1), angle_TF.cos(), angle_TF.sin())[0]

    position_T = distance + torch.arange(20)
    scores_THK = turned(q_HK, position_T) * turned(k_HK, position_T - distance)
    mean_H = scores_THK.sum(-1).mean(0) / math.sqrt(8)
    kappa_HM = kappa(q_HK, k_HK, theta_F, torch.tensor([distance]))
    torch.testing.assert_close(kappa_HM[:, 0], mean_H, atol=1e-9, rtol=0)
