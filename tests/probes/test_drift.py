"""Tests of the drift of learned frequencies from their initial values."""

import math
from typing import Any

import pytest
import torch
from support import probes
from support.models import BASE, make_decoder

from rope_exp.decoder import Decoder
from rope_exp.rope import frequencies

THETA0 = frequencies(8, BASE).tolist()


def ask(decoder: Decoder, **crossings: list[int]) -> dict[str, Any]:
    rotary: Any = decoder.model.rotary_emb
    rotary.crossings = {pair: torch.tensor(count) for pair, count in crossings.items()}
    sites: dict[str, Any] = probes.ask(decoder, "drift")["sites"]
    return sites


@pytest.mark.parametrize("trainable", [True, "log"])
def test_what_is_learned_is_beside_where_it_began(trainable: Any) -> None:
    """|ln(theta/theta0)| is 0.1, 0.4, 0.2 and 0.3, so the median is between the middle two."""
    decoder = make_decoder("q", "k", trainable=trainable)
    moved = [0.1, -0.4, 0.2, 0.3]
    with torch.no_grad():
        learned = decoder.model.rotary_emb.get_parameter("inv_freq")
        if trainable == "log":
            learned.add_(torch.tensor(moved))
        else:
            learned.mul_(torch.tensor(moved).exp())
    (found,) = ask(decoder).values()
    assert found["theta0"] == pytest.approx(THETA0, rel=1e-5)
    expected = [at * math.exp(by) for at, by in zip(THETA0, moved, strict=True)]
    assert found["theta"] == [pytest.approx(expected, rel=1e-5)]
    assert found["median"] == pytest.approx(0.25, abs=2e-6)
    assert "crossings" not in found


def test_what_turns_is_the_absolute_value() -> None:
    """Negating frequencies is no drift. Crossings are summed for each pair of sites."""
    decoder = make_decoder(*"qkvo", trainable=True, base_vo=10.0)
    with torch.no_grad():
        decoder.model.rotary_emb.get_parameter("inv_freq_vo").neg_()
    found = ask(decoder, qk=[0, 0, 0, 0], vo=[1, 1, 3, 1])
    assert found["vo"]["median"] == 0
    assert min(found["vo"]["theta"][0]) > 0
    assert found["qk"]["crossings"] == 0
    assert found["vo"]["crossings"] == 6
    assert found["vo"]["theta0"] != found["qk"]["theta0"]


def test_layers_that_do_not_rotate_are_left_out() -> None:
    """Layers that do not rotate learn nothing, so they would lower the median."""
    decoder = make_decoder("q", "k", trainable=True, trainable_scope="head", layers=(0, 1))
    with torch.no_grad():
        learned = decoder.model.rotary_emb.get_parameter("inv_freq")
        learned.mul_(torch.tensor([[[9.0]], [[0.5]]]).exp())
    found = ask(decoder)["qk"]
    assert len(found["theta"]) == 2
    assert found["median"] == pytest.approx(0.5, abs=2e-6)
