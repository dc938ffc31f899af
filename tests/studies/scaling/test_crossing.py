"""Tests of crossings of two curves, against lines with a known crossing and laws for any curve."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from rope_exp.studies.scaling.passes import crossing, last_crossing

# Values keep away from 0, so that rounding cannot change a sign.
VALUES = st.lists(
    st.floats(0.01, 10).flatmap(lambda x: st.sampled_from([x, -x])), min_size=2, max_size=12
)


def curve(values: list[float]) -> pd.Series:
    return pd.Series(values, index=np.arange(1.0, len(values) + 1) * 100)


def test_a_line_crosses_where_it_is_0() -> None:
    tokens = np.linspace(100, 1000, 7)
    difference = pd.Series(0.002 * (tokens - 640), index=tokens)
    assert last_crossing(difference) == pytest.approx(640)


def test_of_several_crossings_the_last_counts() -> None:
    assert last_crossing(curve([-1, 1, -1, 3, 5])) == pytest.approx(325)


@given(VALUES)
def test_which_of_the_two_is_first_does_not_matter(values: list[float]) -> None:
    found, turned = last_crossing(curve(values)), last_crossing(curve([-each for each in values]))
    assert (found is None) == (turned is None)
    assert found is None or turned == pytest.approx(found)


@given(VALUES, st.floats(0.1, 10))
def test_behind_the_crossing_the_sign_stays(values: list[float], factor: float) -> None:
    difference = curve(values)
    found = last_crossing(difference)
    if found is None:
        assert (difference > 0).nunique() == 1
        return
    assert (difference[difference.index > found] > 0).nunique() == 1
    assert (difference[difference.index < found].iloc[-1] > 0) != (difference.iloc[-1] > 0)
    assert last_crossing(difference * factor) == pytest.approx(found)


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=8))
def test_the_interval_is_that_of_a_t_over_logarithms(tokens: list[float]) -> None:
    assume(np.std(np.log(tokens)) > 1e-3)
    mean, low, high = crossing(tokens)
    expected = stats.ttest_1samp(np.log(tokens), 0).confidence_interval(0.95)
    assert mean == pytest.approx(stats.gmean(tokens))
    assert (low, high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))


def test_one_seed_has_no_interval() -> None:
    assert crossing([3.0]) == (pytest.approx(3.0), None, None)
