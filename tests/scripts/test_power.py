"""Tests of the simulation that chose the statistical test, against bounds known from theory."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import power
import pytest

from rope_exp.evidence.layout import Method, measure
from rope_exp.evidence.significance import judge

DEVIATION = 0.0085
DRAWS = 300
# Three standard errors of a rate of 0.05 in DRAWS draws.
SLACK = 3 * (0.05 * 0.95 / DRAWS) ** 0.5


@pytest.fixture(scope="module")
def rates() -> pd.DataFrame:
    return (
        power.simulate(DEVIATION, DRAWS).set_index(["truth", "noise", "test", "seeds"]).sort_index()
    )


def test_a_draw_is_judged_as_the_report_judges_it() -> None:
    loss_DSV = 3.0 + 0.01 * np.random.default_rng(0).normal(size=(1, 5, 9))
    losses = {f"{v}": {s: float(loss_DSV[0, s, v]) for s in range(5)} for v in range(9)}
    said = power._candidates(loss_DSV)
    noise = measure(losses)
    assert noise is not None
    methods: dict[Method, str] = {"pooled": "pooled t, Holm", "paired": "paired t, Holm"}
    for method, name in methods.items():
        pairs = judge(losses, list(combinations(losses, 2)), replace(noise, method=method))
        np.testing.assert_allclose([pair.p_adjusted for pair in pairs], said[name].p[0])
        np.testing.assert_allclose([pair.p_equivalent for pair in pairs], said[name].equal[0])
        halves = [pair.high - pair.delta for pair in pairs]
        np.testing.assert_allclose(halves, said[name].half[0])


def test_noises_have_deviation_1() -> None:
    random = np.random.default_rng(0)
    for name, draw in power.NOISES.items():
        drawn = draw(random, (20_000, 1, 9))
        assert np.abs(drawn.mean(axis=(0, 1))).max() < 0.35, name
        others = drawn[..., 1:] if name == "late" else drawn
        assert np.sqrt(np.mean(others**2)) == pytest.approx(1, abs=0.03), name


@pytest.mark.torture
def test_the_family_error_is_kept_where_assumptions_hold(rates: pd.DataFrame) -> None:
    for test in ("paired t, Holm", "pooled t, Holm", "pooled if equal, Holm", "pooled, Tukey"):
        found = rates.loc[("equal", "normal", test), "family_error"]
        assert found.max() < 0.05 + SLACK, test


def test_intervals_cover_what_they_promise(rates: pd.DataFrame) -> None:
    for test in ("paired t, Holm", "pooled t, Holm"):
        covered = rates.loc[("spread", "normal", test), "coverage"]
        assert covered.between(0.935, 0.965).all(), test
        assert rates.loc[("spread", "normal", test), "family_coverage"].min() > 0.95 - SLACK


def test_equivalence_is_rarely_claimed_a_margin_apart(rates: pd.DataFrame) -> None:
    assert rates.loc["spread"].drop("late")["false_equal"].dropna().max() < 0.05 + SLACK


def test_five_blocks_cannot_reach_significance_by_sign_flips(rates: pd.DataFrame) -> None:
    """At least two of 32 flips are as extreme as the data, so p >= 1/16 for any difference."""
    for test in ("sign flip, Holm", "step-down maximum"):
        assert rates.loc[("spread", "normal", test, 5), "power_4"] == 0


def test_pooling_finds_more_and_is_wrong_where_noise_differs(rates: pd.DataFrame) -> None:
    at_five = rates.xs(5, level="seeds")["power_2"]["spread", "normal"]
    assert at_five["pooled t, Holm"] > 2 * at_five["paired t, Holm"]
    unequal = rates.xs(8, level="seeds")["family_error"]["equal", "unequal"]
    assert unequal["pooled t, Holm"] > unequal["paired t, Holm"]


def test_power_grows_with_the_difference_and_with_seeds(rates: pd.DataFrame) -> None:
    found = rates.loc[("spread", "normal", "pooled if equal, Holm")]
    by_gap = found[[f"power_{gap:g}" for gap in power.GAPS]]
    assert (by_gap.diff(axis="columns").iloc[:, 1:] >= 0).all(axis=None)
    assert (by_gap.diff().iloc[1:] >= -SLACK).all(axis=None)
