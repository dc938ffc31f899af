"""Tests of frequencies for longer contexts, against transformers and the laws of V and O."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import normal
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rope_exp.probes.extension import interpolated, ntk_aware, yarn, yarn_scale
from rope_exp.rope import angles, frequencies, rotate

DIM = 16
LENGTH = 9
BASE = 10000.0
TRAINED = 2048
SHIFT = 13

HALVES = st.integers(2, 64)
FACTORS = st.floats(1, 64)
BASES = st.floats(1e3, 1e6)
THETA_F = frequencies(DIM, BASE, torch.float64)
EXTENDED = {
    "interpolated": interpolated(THETA_F, 4.0),
    "ntk_aware": ntk_aware(THETA_F, 4.0),
    "yarn": yarn(THETA_F, 4.0, TRAINED, BASE),
}
TWO = list(itertools.permutations(EXTENDED, 2))


# -- against transformers --------------------------------------------------------------------------


def reference(kind: str, half: int, base: float, trained: int, **said: Any) -> tuple[Tensor, float]:
    """Return transformers' theta, and its factor on cosines and sines."""
    length = said.pop("length", None)
    config = LlamaConfig(
        hidden_size=4 * half,
        num_attention_heads=2,
        max_position_embeddings=trained,
        rope_parameters={"rope_type": kind, "rope_theta": base, **said},
    )
    theta_F, scale = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
    return theta_F, scale


def agree(found_F: Tensor, expected_F: Tensor) -> None:
    torch.testing.assert_close(found_F, expected_F, rtol=2e-5, atol=0)


@given(HALVES, BASES, FACTORS)
def test_interpolation_is_transformers_linear(half: int, base: float, factor: float) -> None:
    expected_F, scale = reference("linear", half, base, TRAINED, factor=factor)
    agree(interpolated(frequencies(2 * half, base), factor), expected_F)
    assert scale == 1


@given(HALVES, BASES, FACTORS)
def test_ntk_aware_is_transformers_dynamic(half: int, base: float, factor: float) -> None:
    """Transformers' base grows with the length; at factor 1 only the length sets the extension."""
    length = math.ceil(factor * TRAINED)
    expected_F, _ = reference("dynamic", half, base, TRAINED, factor=1.0, length=length)
    agree(ntk_aware(frequencies(2 * half, base), length / TRAINED), expected_F)


@given(HALVES, BASES, FACTORS, st.integers(8, 8192))
def test_yarn_is_transformers_yarn(half: int, base: float, factor: float, trained: int) -> None:
    said = {"factor": factor, "original_max_position_embeddings": trained}
    expected_F, scale = reference("yarn", half, base, trained, **said)
    agree(yarn(frequencies(2 * half, base), factor, trained, base), expected_F)
    assert yarn_scale(factor) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("half", "base", "trained"), [(8, 10.0, 1024), (16, 20.0, 3000), (4, 5.0, 300), (64, 9.0, 900)]
)
def test_yarns_upper_limit_is_the_last_feature(half: int, base: float, trained: int) -> None:
    """With a small base, one turn lies past all features, so the ramp's end is clipped to n - 1."""
    place = half * math.log(trained / math.tau) / math.log(base)
    assert place > 2 * half - 1
    said = {"factor": 4.0, "original_max_position_embeddings": trained}
    expected_F, _ = reference("yarn", half, base, trained, **said)
    theta_F = frequencies(2 * half, base)
    assert not torch.equal(expected_F, theta_F)
    agree(yarn(theta_F, 4.0, trained, base), expected_F)


def test_where_all_pairs_turn_often_yarn_changes_none() -> None:
    """The ramp's limits cross; transformers' ramp is then reversed and interpolates all pairs."""
    theta_F = frequencies(DIM, 2.0)
    assert torch.equal(yarn(theta_F, 4.0, 8192, 2.0), theta_F)


# -- against closed forms --------------------------------------------------------------------------


@given(HALVES, BASES, FACTORS)
def test_ntk_aware_is_another_base(half: int, base: float, factor: float) -> None:
    """The other base is base s^(n/(n-2)); the first pair stays, and the last is interpolated."""
    n = 2 * half
    theta_F = frequencies(n, base, torch.float64)
    found_F = ntk_aware(theta_F, factor)
    other_F = frequencies(n, base * factor ** (n / (n - 2)), torch.float64)
    torch.testing.assert_close(found_F, other_F, rtol=1e-9, atol=0)
    assert found_F[0] == theta_F[0]
    assert float(found_F[-1]) == pytest.approx(float(theta_F[-1]) / factor)


@given(HALVES, BASES, FACTORS, st.integers(7, 8192))
def test_yarn_goes_by_turns(half: int, base: float, factor: float, trained: int) -> None:
    """Fast pairs stay, pairs that turn less than once are interpolated, and others lie between.

    Limits are rounded outwards, so exact values are expected only a full pair past a limit.
    """
    theta_F = frequencies(2 * half, base, torch.float64)
    slower_F = theta_F / yarn(theta_F, factor, trained, base)
    turns_F = trained * theta_F / math.tau
    step = base ** (1 / half)

    assert torch.all(slower_F >= 1 - 1e-12)
    assert torch.all(slower_F <= factor * (1 + 1e-12))
    assert torch.all(slower_F.diff() >= -1e-9 * factor)
    often = turns_F > 32 * step
    torch.testing.assert_close(slower_F[often], torch.ones_like(slower_F[often]))
    seldom = turns_F < 1 / step
    torch.testing.assert_close(slower_F[seldom], torch.full_like(slower_F[seldom], factor))


@pytest.mark.parametrize("name", EXTENDED)
def test_frequencies_of_layers_are_extended_one_by_one(name: str) -> None:
    """A pair is slowed according to its index, whatever frequency it has learned."""
    extend: dict[str, Callable[[Tensor], Tensor]] = {
        "interpolated": lambda theta: interpolated(theta, 4.0),
        "ntk_aware": lambda theta: ntk_aware(theta, 4.0),
        "yarn": lambda theta: yarn(theta, 4.0, TRAINED, BASE),
    }
    theta_LGF = THETA_F * normal(3, 2, 1, seed=4).exp()
    expected = torch.stack([torch.stack([*map(extend[name], layer)]) for layer in theta_LGF])
    torch.testing.assert_close(extend[name](theta_LGF), expected)


@pytest.mark.parametrize("extend", [interpolated, ntk_aware])
def test_a_factor_of_one_changes_nothing(extend: Callable[[Tensor, float], Tensor]) -> None:
    assert torch.equal(extend(THETA_F, 1.0), THETA_F)
    torch.testing.assert_close(yarn(THETA_F, 1.0, TRAINED, BASE), THETA_F)
    assert yarn_scale(1.0) == 1


# -- pairs of sites --------------------------------------------------------------------------------


def turned(x_BTHK: Tensor, position_T: Tensor, theta_F: Tensor, *, inverse: bool = False) -> Tensor:
    angle_TF = angles(theta_F, position_T)
    return rotate(x_BTHK, angle_TF.cos(), angle_TF.sin(), inverse=inverse)


def weights() -> Tensor:
    """Return random causal weights of each head."""
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
    return normal(2, LENGTH, LENGTH, seed=1).masked_fill(hidden, -math.inf).softmax(-1)


def outputs(theta_v: Tensor, theta_o: Tensor, start: int = 0) -> Tensor:
    """Return the weighted sum of rotated values, rotated back, with positions from `start`."""
    position_T = start + torch.arange(LENGTH)
    v_BTHK = turned(normal(1, LENGTH, 2, DIM), position_T, theta_v)
    o_BTHK = torch.einsum("hij,bjhk->bihk", weights(), v_BTHK)
    return turned(o_BTHK, position_T, theta_o, inverse=True)


@pytest.mark.parametrize(("of_v", "of_o"), TWO)
def test_v_and_o_of_two_extensions_turn_with_a_shift(of_v: str, of_o: str) -> None:
    """A shift by c rotates outputs by c (theta_v - theta_o); with V alone, by c theta_v."""
    theta_v, theta_o = EXTENDED[of_v], EXTENDED[of_o]
    here = outputs(theta_v, theta_o)
    shifted = outputs(theta_v, theta_o, SHIFT)
    by_shift = torch.full((LENGTH,), SHIFT)
    torch.testing.assert_close(shifted, turned(here, by_shift, theta_v - theta_o))
    assert float((shifted - here).abs().max()) > 0.01
