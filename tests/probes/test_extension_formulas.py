"""Tests of frequencies for longer contexts against transformers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.models import normal
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rope_exp.probes.extension import ntk_aware, yarn
from rope_exp.rope import frequencies

DIM = 16
BASE = 10000.0
TRAINED = 2048

HALVES = st.integers(2, 64)
FACTORS = st.floats(1, 64)
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


@given(HALVES, BASES, FACTORS)
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
@given(HALVES, BASES, FACTORS, st.integers(8, 8192))
def test_yarn_is_transformers_yarn(half: int, base: float, factor: float, trained: int) -> None:
    found_F = yarn(frequencies(2 * half, base), factor, trained, base)
    rope = {"rope_theta": base, "factor": factor, "original_max_position_embeddings": trained}
    expected_F = transformers_theta("yarn", half, **rope)
    torch.testing.assert_close(found_F, expected_F, rtol=2e-5, atol=0)


def test_where_all_pairs_turn_often_yarn_changes_none() -> None:
    """The ramp's limits cross; transformers' ramp is then reversed and interpolates all pairs."""
    theta_F = frequencies(DIM, 2.0)
    assert torch.equal(yarn(theta_F, 4.0, 8192, 2.0), theta_F)


@pytest.mark.parametrize(
    "extend",
    [lambda theta: ntk_aware(theta, 4.0), lambda theta: yarn(theta, 4.0, TRAINED, BASE)],
    ids=["ntk_aware", "yarn"],
)
def test_frequencies_of_layers_are_extended_one_by_one(extend: Callable[[Tensor], Tensor]) -> None:
    """A pair is slowed according to its index, whatever frequency it has learned."""
    theta_LGF = frequencies(DIM, BASE, torch.float64) * normal(3, 2, 1, seed=4).exp()
    expected = torch.stack([torch.stack([*map(extend, layer)]) for layer in theta_LGF])
    torch.testing.assert_close(extend(theta_LGF), expected)
