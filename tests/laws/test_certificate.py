"""Tests of the certificate: each subset obeys its law, and broken formulas are refused."""

import itertools
from pkgutil import resolve_name
from typing import Any

import pytest
from support.models import SIZES, SUBSETS, make_pe, make_sizes
from torch import Tensor

from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.errors import LawError
from rope_exp.laws import certificate, expected_class
from rope_exp.sections import AttentionConfig


@pytest.mark.parametrize(
    ("attn", "name", "where"),
    [
        (LatentConfig(), "absorbed", "attn.latent:Layer._absorbed"),
        (RetentionConfig(), "parallel", "attn._recurrence:parallel"),
    ],
)
def test_a_formula_that_differs_is_refused(
    attn: AttentionConfig, name: str, where: str, monkeypatch: pytest.MonkeyPatch
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


def test_the_certificate_holds_at_far_positions() -> None:
    checked = certificate(SIZES, make_pe("v", "o", base=1e6, start=2**20))
    assert checked["measured"] == "invariant"
    assert checked["max_deviation"]["turned by R_c"] > 1e-3


@pytest.mark.parametrize(
    "changes", [{}, {"fraction": 0.5}, {"input": "sinusoidal"}, {"input": "learned"}], ids=str
)
def test_a_whole_decoder_answers_to_a_shift(changes: dict[str, Any]) -> None:
    """Logits stay if both sites of each pair rotate, or neither, and no position is added."""
    for sites, causal in itertools.product(SUBSETS, (True, False)):
        checked = certificate(SIZES, make_pe(*sites, start=2, **changes), causal=causal)["decoder"]
        is_relative = expected_class(sites) == "invariant" and "input" not in changes
        assert checked["measured"] == ("invariant" if is_relative else "changed")
        assert (checked["deviation"] < 1e-11) == is_relative


def test_each_set_of_sites_that_a_layer_has_is_measured() -> None:
    pe = make_pe(*"qkvo", layers=(1, 1, 1, 0), layers_vo=(0, 0, 0, 1), base_vo=7.0)
    checked = certificate(make_sizes(num_hidden_layers=8), pe)
    assert set(checked["of_layers"]) == {"qk", "vo"}
    assert all(law["measured"] == "invariant" for law in checked["of_layers"].values())
    assert "of_layers" not in certificate(SIZES, make_pe(*"qkvo"))
