"""Tests of the certificate: each subset obeys its law, and broken rotations are refused."""

import contextlib
import itertools
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from support.models import BASE, SIZES, SUBSETS, make_pe, make_sizes, rotation_matrix
from torch import Tensor

from rope_exp.attention import Attention, LayerCache, Positions, SoftmaxAttention
from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.errors import LawError
from rope_exp.laws.certificate import SHIFT, certificate, expected_class
from rope_exp.sections import Kind, PeConfig, SoftmaxConfig


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
@pytest.mark.parametrize(("fraction", "start"), [(1.0, 0), (0.5, 3)])
def test_each_subset_belongs_to_its_class(
    sites: tuple[str, ...], fraction: float, start: int
) -> None:
    checked = certificate(SIZES, make_pe(*sites, fraction=fraction, start=start))
    assert checked["measured"] == expected_class(sites)


@pytest.mark.parametrize(
    ("attn", "name", "where"),
    [
        (LatentConfig(), "absorbed", "attn.latent:Layer._absorbed"),
        (RetentionConfig(), "parallel", "attn._recurrence:parallel"),
        (SoftmaxConfig(), "cached", "attention:attention_after"),
    ],
)
def test_a_formula_that_differs_is_refused(
    attn: Kind, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative error of a thousandth is enough."""
    path = f"rope_exp.{where}"
    function = resolve_name(path)

    def wrong(*arguments: Any, **keywords: Any) -> Tensor:
        output: Tensor = function(*arguments, **keywords)
        return output * 1.001

    monkeypatch.setattr(path.replace(":", "."), wrong)
    with pytest.raises(LawError, match=f"computed as .*{name}"):
        certificate(SIZES, make_pe(), attn)


@pytest.mark.parametrize("site", "qkvo")
def test_a_site_that_does_not_turn_is_refused(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Attention.turn

    def wrong(self: Attention, name: str, x_BTHK: Tensor, at: Positions) -> Tensor:
        return x_BTHK if name == site else turn(self, name, x_BTHK, at)

    monkeypatch.setattr(Attention, "turn", wrong)
    with pytest.raises(LawError, match="it must be invariant"):
        certificate(SIZES, make_pe(*"qkvo"))


def test_the_certificate_holds_at_far_positions() -> None:
    checked = certificate(SIZES, make_pe("v", "o", base=1e6, start=2**20))
    assert checked["measured"] == "invariant"
    assert checked["max_deviation"]["turned by R_c"] > 1e-3


@pytest.mark.parametrize("changes", [{}, {"input": "sinusoidal"}, {"input": "learned"}], ids=str)
def test_a_whole_decoder_answers_to_a_shift(changes: dict[str, Any]) -> None:
    """Logits stay if both sites of each pair rotate, or neither, and no position is added."""
    for sites, causal in itertools.product(SUBSETS, (True, False)):
        checked = certificate(SIZES, make_pe(*sites, start=2, **changes), causal=causal)["decoder"]
        is_relative = expected_class(sites) == "invariant" and not changes
        assert checked["measured"] == ("invariant" if is_relative else "changed")
        assert (checked["deviation"] < 1e-11) == is_relative


def test_each_set_of_sites_that_a_layer_has_is_measured() -> None:
    pe = make_pe(*"qkvo", layers=(1, 1, 1, 0), layers_vo=(0, 0, 0, 1), base_vo=7.0)
    checked = certificate(make_sizes(num_hidden_layers=8), pe)
    assert set(checked["of_layers"]) == {"qk", "vo"}
    assert all(each["measured"] == "invariant" for each in checked["of_layers"].values())
    assert "of_layers" not in certificate(SIZES, make_pe(*"qkvo"))


# -- against dense matrices ------------------------------------------------------------------------

START = 3
DIM = SIZES.features_per_head
OWN = {"base_vo": 7.0, "fraction_vo": 0.5}


def written_out(attention: Attention, x_TD: Tensor, pe: PeConfig, first: int) -> Tensor:
    """Return o_THK of all query heads over one key head, by dense matrices, from `first` on."""
    q, k, v = (
        (x_TD @ attention.get_parameter(f"{name}_proj.weight").T).unflatten(-1, (-1, DIM))
        for name in "qkv"
    )

    def at(site: str, place: int) -> Tensor:
        matrix = torch.eye(DIM, dtype=torch.float64)
        if site in pe.rotate:
            own = pe.base_vo is not None and site in "vo"
            base, turning = (7.0, DIM // 2) if own else (BASE, DIM)
            matrix[:turning, :turning] = rotation_matrix(first + place, turning, base)
        return matrix

    o_THK = torch.zeros_like(q)
    for head, i in itertools.product(range(q.shape[1]), range(len(x_TD))):
        q_i = at("q", i) @ q[i, head]
        scores = torch.stack([(at("k", j) @ k[j, 0]) @ q_i for j in range(i + 1)]) / DIM**0.5
        v_j = torch.stack([at("v", j) @ v[j, 0] for j in range(i + 1)])
        o_THK[i, head] = at("o", i).T @ (scores.softmax(dim=0) @ v_j)
    return o_THK


def deviations(monkeypatch: pytest.MonkeyPatch, pe: PeConfig) -> list[float]:
    """Return how far the two outputs that a certificate compares are from dense matrices."""
    seen: list[float] = []
    heads = SoftmaxAttention.heads

    def watched(
        self: SoftmaxAttention, x_BTD: Tensor, at: Positions, cache: LayerCache | None
    ) -> Tensor:
        o_BTHK = heads(self, x_BTD, at, cache)
        if len(seen) < 2:
            expected = written_out(self, x_BTD[0], pe, START + len(seen) * SHIFT)
            seen.append(float((o_BTHK[0] - expected).abs().max()))
        return o_BTHK

    with monkeypatch.context() as patch, contextlib.suppress(LawError):
        patch.setattr(SoftmaxAttention, "heads", watched)
        certificate(SIZES, pe)
    return seen


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
def test_what_is_measured_is_what_matrices_give(
    sites: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake breaks no law in a subset that has none, so dense matrices check every subset.

    v and o share the rotation of q and k, or have their own base and fraction.
    """
    for own in ({}, OWN) if {"v", "o"} & {*sites} else ({},):
        found = deviations(monkeypatch, make_pe(*sites, start=START, **own))
        assert len(found) == 2
        assert max(found) < 1e-12
