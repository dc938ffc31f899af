"""Tests of the distance probe on decoders whose attention weights have a closed form."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.models import VOCAB, make_sizes, opinionated
from torch import Tensor

from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.shared import Config as SharedConfig
from rope_exp.decoder import Decoder
from rope_exp.position.alibi import alibi_slopes
from rope_exp.probes._contexts import attentions, weighed
from rope_exp.probes._probes import Questions
from rope_exp.probes.distance import decay_bound
from rope_exp.rope import frequencies
from rope_exp.sections import Kind, ModelConfig, TrainConfig

LENGTH = 16
M = [0, 1, 2, 3, 4, 6]
TRAIN = TrainConfig(seq_len=LENGTH, eval_sequences=16)
HELD_OUT = np.random.default_rng(0).integers(0, VOCAB, size=20 * LENGTH + 1)

UNGROUPED = make_sizes(num_key_value_heads=4)
LATENT = LatentConfig(kv_rank=10, nope_dim=6, rope_dim=4, value_dim=5)
SHARED = SharedConfig(form="s2", groups=2, nope_dim=6, rope_dim=4)


def ask(decoder: Decoder, held_out: np.ndarray = HELD_OUT) -> dict[str, Any]:
    answers = Questions(decoder, held_out, TRAIN, 4).ask(["distance"])
    assert answers is not None
    return answers["distance"]


def indifferent(**changes: Any) -> Decoder:
    """Return a decoder whose queries are 0, so that only masks and biases set the weights."""
    decoder = opinionated("q", "k", **changes)
    with torch.no_grad():
        for layer in attentions(decoder):
            layer.get_parameter("q_proj.weight").zero_()
    return decoder


def weights(decoder: Decoder, layer: int, ids: np.ndarray) -> Tensor:
    """Return the attention weights of a layer, [B, H, T, T]."""
    seen: list[Tensor] = []
    with (
        torch.no_grad(),
        weighed(attentions(decoder)[layer], lambda weights_BHTT, *_: seen.append(weights_BHTT)),
    ):
        decoder(torch.from_numpy(ids))
    return seen[0]


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"causal": False}, {"sizes": make_sizes(window=3)}],
    ids=["causal", "both ways", "window"],
)
def test_queries_of_zero_weigh_all_keys_alike(changes: dict[str, Any]) -> None:
    """With queries of 0, A(m) equals the probe's `uniform` reference in every layer."""
    found = ask(indifferent(**changes))
    assert found["m"] == M
    assert list(found["attention"]) == ["0", "1"]
    for by_distance in found["attention"].values():
        assert by_distance == pytest.approx(found["uniform"], rel=1e-4)

    late = range(LENGTH // 2, LENGTH)
    num_keys = [i + 1 for i in late] if not changes else [16 if "causal" in changes else 3] * 8
    mean = np.mean([1 / number for number in num_keys])
    reach = 3 if "sizes" in changes else LENGTH
    assert found["uniform"] == pytest.approx([mean * (m < reach) for m in M], rel=1e-4)


def test_a_bias_alone_gives_weights_by_its_slopes() -> None:
    """A(m) is the mean of exp(-slope m) / sum over heads and late queries."""
    found = ask(indifferent(bias="alibi"))
    slope_H11 = alibi_slopes(4).double()[:, None, None]
    i_T1 = torch.arange(LENGTH // 2, LENGTH, dtype=torch.float64)[:, None]
    expected = []
    for m in M:
        below = sum(torch.exp(-slope_H11 * n) * (n <= i_T1) for n in range(LENGTH))
        expected.append(float((torch.exp(-slope_H11 * m) / below).mean()))
    for by_distance in found["attention"].values():
        assert by_distance == pytest.approx(expected, rel=1e-4)


def test_weights_are_means_over_heads_windows_and_late_queries() -> None:
    """A loop averages the weights in the four windows that shift and ablation also read."""
    decoder = opinionated("q", "k", "v", "o")
    windows = [HELD_OUT[window * LENGTH :][:LENGTH] for window in (0, 5, 10, 15)]
    weights_BHTT = weights(decoder, 1, np.stack(windows))
    found = ask(decoder)["attention"]["1"]
    for m, weight in zip(M, found, strict=True):
        late = [weights_BHTT[:, :, i, i - m] for i in range(LENGTH // 2, LENGTH)]
        assert weight == pytest.approx(float(torch.stack(late).mean()), rel=1e-4)


# -- kappa and the bound ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attn", "sizes", "changes"),
    [
        (None, make_sizes(), {}),
        (None, make_sizes(), {"fraction": 0.5, "start": 7}),
        (None, make_sizes(qk_norm=True), {"trainable": "log", "trainable_scope": "head"}),
        (None, make_sizes(), {"trainable": True, "trainable_scope": "layer"}),
        (LATENT, UNGROUPED, {"trainable": True, "trainable_scope": "head"}),
        (SHARED, UNGROUPED, {}),
    ],
    ids=["softmax", "fraction", "heads", "layers", "latent", "shared"],
)
def test_kappa_is_the_score_where_all_tokens_are_alike(
    attn: Kind | None, sizes: ModelConfig, changes: dict[str, Any]
) -> None:
    """Equal tokens have equal values, so every query and key equals its mean in both layers. The
    logarithm of two weights' ratio is then the difference of their kappas.
    """
    kind = {} if attn is None else {"attn": attn}
    decoder = opinionated("q", "k", sizes=sizes, **kind, **changes)
    with torch.no_grad():
        for parameter in decoder.model.rotary_emb.parameters():
            shape = parameter.shape
            parameter += torch.linspace(-0.2, 0.3, shape.numel()).view(shape)

    alike = np.full_like(HELD_OUT, 3)
    found = ask(decoder, alike)["kappa"]
    for layer in (0, 1):
        last_HT = weights(decoder, layer, alike[None, :LENGTH])[0, :, -1].double().log()
        for head, kappas in enumerate(found[str(layer)]):
            at_distance = last_HT[head].flip(0)[M]
            expected = at_distance - at_distance[0]
            moved = torch.tensor(kappas).double() - kappas[0]
            torch.testing.assert_close(moved, expected, atol=2e-3, rtol=2e-3)
            assert moved.abs().max() > 0.01


def test_kappa_and_bound_are_of_layers_that_rotate_both() -> None:
    decoder = opinionated("q", "k", layers=(0, 1), trainable=True, trainable_scope="layer")
    with torch.no_grad():
        decoder.model.rotary_emb.inv_freq[0] *= 0.1
    found = ask(decoder)
    assert list(found["kappa"]) == ["1"]
    assert len(found["kappa"]["1"]) == 4
    bound_M = decay_bound(frequencies(8, 100.0), torch.tensor(M))
    assert found["bound"] == pytest.approx(bound_M.tolist(), rel=1e-5)
    assert math.isclose(found["bound"][0], 2.5)


@pytest.mark.parametrize("sites", ["", "q", "k", "vo", "qvo"])
def test_without_both_there_is_neither_bound_nor_kappa(sites: str) -> None:
    assert set(ask(opinionated(*sites))) == {"m", "attention", "uniform"}
