"""Tests that chunked sums equal those of the whole triangle, also when continued from a state."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rope_exp.attn._recurrence import CHUNK, Scores, chunked, parallel

HEADS = 3
LOG_GAMMAS = [torch.zeros(HEADS), torch.tensor([-1e-7, -0.03, -2.0])]
LENGTHS = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1]


def inputs(length: int, *, with_scores: bool, seed: int = 0) -> tuple[Scores, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    scores = (draw(2, length, HEADS, 4), draw(2, length, HEADS, 4)) if with_scores else None
    return scores, draw(2, length, HEADS, 5)


def by_loop(scores: Scores, v_BTHV: Tensor, log_gamma_H: Tensor) -> Tensor:
    """Return o = q' S with S <- gamma S + k v', one token at a time."""
    ones = torch.ones_like(v_BTHV[..., :1])
    q, k = scores or (ones, ones)
    gamma_H11 = log_gamma_H.double().exp()[:, None, None]
    state = torch.zeros(2, HEADS, k.shape[-1], v_BTHV.shape[-1], dtype=torch.float64)
    outputs = []
    for t in range(v_BTHV.shape[1]):
        state = gamma_H11 * state + k[:, t, :, :, None] * v_BTHV[:, t, :, None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("log_gamma_H", LOG_GAMMAS, ids=["none", "each its own"])
@pytest.mark.parametrize("with_scores", [True, False])
def test_chunks_the_triangle_and_the_loop_agree(
    length: int, log_gamma_H: Tensor, with_scores: bool
) -> None:
    scores, v_BTHV = inputs(length, with_scores=with_scores)
    expected = by_loop(scores, v_BTHV, log_gamma_H)
    torch.testing.assert_close(parallel(scores, v_BTHV, log_gamma_H), expected)
    torch.testing.assert_close(chunked(scores, v_BTHV, log_gamma_H)[0], expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_a_state_carries_all_that_came_before(
    first: int, second: int, size: int, with_scores: bool, seed: int
) -> None:
    """Outputs depend neither on where the sequence is cut nor on the chunk size."""
    log_gamma_H = LOG_GAMMAS[1]
    scores, v_BTHV = inputs(first + second, with_scores=with_scores, seed=seed)
    expected = parallel(scores, v_BTHV, log_gamma_H)

    outputs = []
    state = None
    for part in (slice(0, first), slice(first, None)):
        cut = None if scores is None else (scores[0][:, part], scores[1][:, part])
        o_BTHV, state = chunked(cut, v_BTHV[:, part], log_gamma_H, state, size=size)
        outputs.append(o_BTHV)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


def test_in_bfloat16_sums_over_many_chunks_stay_near() -> None:
    """Autocast must not turn the float32 products between chunks into bfloat16 ones."""
    scores, v_BTHV = inputs(16 * CHUNK, with_scores=True)
    assert scores is not None
    exact = parallel(scores, v_BTHV, LOG_GAMMAS[0])
    narrow = (scores[0].bfloat16(), scores[1].bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        ours, state = chunked(narrow, v_BTHV.bfloat16(), LOG_GAMMAS[0])
    assert (ours.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert float((ours.double() - exact).norm() / exact.norm()) < 0.01
