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
labels = st.sampled_from([*TABLE.losses, "qv_rope", "mine"])


def test_tau_has_the_exact_p_of_few_rows() -> None:
    ours = {"qk_rope": 1.0, "nope": 3.0, "k_rope": 2.0, "qv_rope": 0.5, "mine": 9.0}
    tau, p, count = kendall_tau(ours, TABLE.losses)
    assert (tau, count) == (1.0, 3)
    assert p == pytest.approx(1 / 3)


@given(st.dictionaries(labels, losses), st.sampled_from([TABLE.losses, {"nope": 1, "k_rope": 1}]))
def test_tau_is_that_of_counting(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """Rows of one side alone are left out; tau is undefined if a side has no two losses."""
    tau, _, count = kendall_tau(ours, theirs)
    shared = ours.keys() & theirs.keys()
    assert count == len(shared)

    pairs = list(combinations(shared, 2))
    of_ours = [np.sign(ours[a] - ours[b]) for a, b in pairs]
    of_theirs = [np.sign(theirs[a] - theirs[b]) for a, b in pairs]
    untied = np.count_nonzero(of_ours) * np.count_nonzero(of_theirs)
    if untied == 0:
        assert math.isnan(tau)
    else:
        assert tau == pytest.approx(np.dot(of_ours, of_theirs) / math.sqrt(untied), abs=1e-12)
