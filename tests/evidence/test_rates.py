"""Rates are told apart within a seed, however many seeds each of them has."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rope_exp.evidence.rates import best_rate, mean_by_rate

RATES = [0.001, 0.003, 0.01]
EFFECTS = st.floats(-1, 1, width=32)


@given(
    of_rate=arrays(float, 3, elements=EFFECTS),
    of_seed=arrays(float, 4, elements=EFFECTS),
    is_run=arrays(bool, (4, 3)),
)
def test_missing_seeds_shift_no_rate(
    of_rate: np.ndarray, of_seed: np.ndarray, is_run: np.ndarray
) -> None:
    """Where a loss is a rate's plus a seed's part, rates differ by theirs, whatever is missing."""
    # Seed 0 was run at every rate, so that each shares one with each.
    is_run[0] = True
    losses = np.where(is_run, of_seed[:, None] + of_rate, np.nan)
    means = mean_by_rate(pd.DataFrame(losses, columns=RATES))
    np.testing.assert_allclose(means - means.iloc[0], of_rate - of_rate[0], atol=1e-12)


def test_the_best_rate_is_not_that_of_the_easiest_seed() -> None:
    """Seed 1 is easy: the mean at 0.003, over it alone, would be the lowest."""
    table = pd.DataFrame({0.001: [4.0, 3.0], 0.003: [np.nan, 3.1]})
    assert mean_by_rate(table).to_dict() == pytest.approx({0.001: 3.5, 0.003: 3.6})
    assert best_rate(table) == 0.001


def test_a_rate_that_shares_no_seed_is_left_out() -> None:
    table = pd.DataFrame({0.001: [4.0, 3.0, np.nan], 0.003: [3.9, 2.9, 1.0], 0.01: [np.nan] * 3})
    assert mean_by_rate(table).to_dict() == pytest.approx({0.001: 2.7, 0.003: 2.6})
