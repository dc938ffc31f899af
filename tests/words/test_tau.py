"""Tests of Kendall's tau-b against counting pairs."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.published import TABLE
from rope_exp.words.summary import kendall_tau

losses = st.floats(0.0, 20.0, allow_subnormal=False)


def test_tau_counts_pairs_by_hand() -> None:
    """Among 6 pairs, a-b is tied in ours, c-d is discordant, and 4 are concordant."""
    ours = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 3.0}
    theirs = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 3.0}
    tau, _, count = kendall_tau(ours, theirs)
    assert count == 4
    assert tau == pytest.approx((4 - 1) / math.sqrt((6 - 1) * 6), abs=1e-15)


def test_tau_leaves_out_what_only_one_side_has() -> None:
    ours = {"qk_rope": 1.0, "nope": 3.0, "k_rope": 2.0, "qv_rope": 0.5, "mine": 9.0}
    tau, p, count = kendall_tau(ours, TABLE.losses)
    assert (tau, count) == (1.0, 3)
    assert p == pytest.approx(1 / 3)


@pytest.mark.parametrize("ours", [{}, {"nope": 1.0}, {"nope": 1.0, "qk_rope": 1.0}])
def test_tau_of_fewer_than_two_or_of_equals_is_undefined(ours: dict[str, float]) -> None:
    tau, _, count = kendall_tau(ours, TABLE.losses)
    assert math.isnan(tau)
    assert count == len(ours)


@given(st.dictionaries(st.sampled_from(list(TABLE.losses)), losses, min_size=2))
def test_tau_is_that_of_counting(ours: dict[str, float]) -> None:
    tau, _, count = kendall_tau(ours, TABLE.losses)
    assert count == len(ours)

    pairs = list(combinations(ours, 2))
    theirs = TABLE.losses
    signs = [np.sign(ours[a] - ours[b]) * np.sign(theirs[a] - theirs[b]) for a, b in pairs]
    untied = sum(sign != 0 for sign in signs)
    if untied == 0:
        assert math.isnan(tau)
    else:
        assert tau == pytest.approx(sum(signs) / math.sqrt(untied * len(pairs)), abs=1e-12)
