"""Tests of the context managers that observe a decoder or change it temporarily."""

from typing import Any

import pytest
import torch
from support.kinds import KINDS
from support.models import BASE, make_sizes, opinionated, tokens
from torch import Tensor

from rope_exp.attention import Attention
from rope_exp.attn._recurrence import for_queries
from rope_exp.decoder import Decoder
from rope_exp.probes._contexts import attentions, scores_times, turning_by, weighed
from rope_exp.rope import frequencies
from rope_exp.sections import Kind, ModelConfig

LENGTH = 13
KEEPING_KEYS = [attn for attn in KINDS if attn.keeps_keys]
SCORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "both ways": {"causal": False},
    "window": {"window": 4},
    "t5": {"bias": "t5"},
    "alibi both ways": {"bias": "alibi", "causal": False},
    "frequencies of heads": {"trainable": True, "trainable_scope": "head"},
}


def sizes_for(attn: Kind, **changes: Any) -> ModelConfig:
    """Return sizes without grouped heads if the kind has sizes of its own."""
    return make_sizes(**changes, **({} if attn.takes_heads else {"num_key_value_heads": 4}))


class Watched:
    """Records the values and outputs of one layer's `attend`, and what `weighed` passes on."""

    values: Tensor
    outputs: Tensor
    weights: Tensor
    queries: Tensor
    keys: Tensor

    def __init__(self, layer: Attention) -> None:
        attend = layer.attend

        def recorded(q: Tensor, k: Tensor, values: list[Tensor], *others: Any) -> Tensor:
            self.values = torch.cat(values, dim=-1)
            self.outputs = attend(q, k, values, *others)
            return self.outputs

        layer.attend = recorded  # type: ignore[method-assign]
        self.layer = layer

    def see(self, weights: Tensor, queries: Tensor, keys: Tensor) -> None:
        self.weights, self.queries, self.keys = weights, queries, keys


def watch(decoder: Decoder, ids: Tensor, layer: int = 0) -> Watched:
    watched = Watched(attentions(decoder)[layer])
    with torch.no_grad(), weighed(watched.layer, watched.see):
        decoder(ids)
    del watched.layer.attend
    return watched


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scored", SCORED)
def test_weights_times_values_are_the_output(scored: str) -> None:
    """Every kind is covered, with every mask and bias. Weights sum to 1, or to less with a sink."""
    for attn in KEEPING_KEYS:
        changes = dict(SCORED[scored])
        sizes = sizes_for(attn, window=changes.pop("window", None))
        decoder = opinionated("q", "k", attn=attn, sizes=sizes, **changes).double()
        found = watch(decoder, tokens(2, LENGTH), layer=1)

        v_BTHV = for_queries(found.values, 4)
        expected = torch.einsum("bhij,bjhv->bihv", found.weights, v_BTHV)
        torch.testing.assert_close(found.outputs, expected)
        sums_BHT = found.weights.sum(-1)
        if getattr(attn, "sink", False):
            assert float(sums_BHT.max()) < 1
        else:
            torch.testing.assert_close(sums_BHT, torch.ones(2, 4, LENGTH).double())
        assert found.weights.min() >= 0


def test_weights_are_exact_where_a_run_is_not() -> None:
    """Under bf16 autocast the weights are float32, and the decoder's own output is unchanged."""
    decoder = opinionated("q", "k")
    ids = tokens(2, LENGTH)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        usual = decoder(ids)
        found = watch(decoder, ids)
        layer = attentions(decoder)[0]
        with weighed(layer, found.see):
            assert torch.equal(decoder(ids), usual)

    assert found.outputs.dtype == torch.bfloat16
    assert found.weights.dtype == torch.float32
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 4, LENGTH), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attn", KEEPING_KEYS, ids=lambda attn: attn.label)
def test_queries_and_keys_are_shown_before_they_turn(attn: Kind) -> None:
    """In the first layer, queries and keys equal those of the same weights without rotation."""
    ids = tokens(2, LENGTH)
    still = watch(opinionated(attn=attn, sizes=sizes_for(attn)), ids)
    for sites in ("q", "k", "qk"):
        found = watch(opinionated(*sites, attn=attn, sizes=sizes_for(attn), start=5), ids)
        torch.testing.assert_close(found.queries, still.queries, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.keys, still.keys, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(found.weights, still.weights, atol=1e-2)


# -- frequencies and scales ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "bases"),
    [(["qk"], {"base_vo": BASE, "base": 7.0}), (["vo"], {"base_vo": 7.0}), (["qk", "vo"], {})],
    ids=str,
)
def test_other_frequencies_are_those_of_another_decoder(
    pairs: list[str], bases: dict[str, float]
) -> None:
    """The other decoder is built with another base for qk, for vo, or for both."""
    ids = tokens(2, LENGTH)
    decoder = opinionated(*"qkvo")
    other = opinionated(*"qkvo", **(bases or {"base": 7.0}))
    usual = decoder(ids)
    with turning_by(decoder, dict.fromkeys(pairs, frequencies(8, 7.0))):
        found = decoder(ids)
    torch.testing.assert_close(found, other(ids))
    assert torch.equal(decoder(ids), usual)
    assert not torch.allclose(found, usual, atol=1e-2)


@pytest.mark.parametrize("bias", ["none", "alibi"])
def test_scores_are_multiplied_and_nothing_else(bias: str) -> None:
    """The reference has larger query projections, which leave biases, v and o unchanged."""
    ids = tokens(2, LENGTH)
    decoder = opinionated(*"qkvo", bias=bias)
    usual = decoder(ids)
    with scores_times(decoder, 1.7):
        found = decoder(ids)
    assert torch.equal(decoder(ids), usual)

    with torch.no_grad():
        for layer in attentions(decoder):
            layer.get_parameter("q_proj.weight").mul_(1.7)
    torch.testing.assert_close(found, decoder(ids))
    assert not torch.allclose(found, usual, atol=1e-2)
