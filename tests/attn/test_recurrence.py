"""Tests that chunked sums equal those of the whole triangle, also when continued from a state."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import normal
from torch import Tensor

from rope_exp.attn._recurrence import CHUNK, Scores, chunked, parallel

HEADS = 3
LOG_GAMMAS = [torch.zeros(HEADS), torch.tensor([-1e-7, -0.03, -2.0])]


def inputs(length: int, *, with_scores: bool, seed: int = 0) -> tuple[Scores, Tensor]:
    q, k = normal(2, 2, length, HEADS, 4, seed=seed)
    return (q, k) if with_scores else None, normal(2, length, HEADS, 5, seed=seed + 1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from(LOG_GAMMAS),
)
def test_a_state_carries_all_that_came_before(
    first: int, second: int, size: int, with_scores: bool, seed: int, log_gamma_H: Tensor
) -> None:
    """Outputs depend neither on where the sequence is cut nor on the chunk size."""
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
    assert ours.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert float((ours.double() - exact).norm() / exact.norm()) < 0.01
