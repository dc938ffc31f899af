"""Tests of lines in logarithms: known slopes are found, and intervals cover at their level."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from rope_exp.studies.scaling.fit import AXES, fit

CELLS = list(itertools.product((3e5, 1.3e6, 5e6), (2e6, 4e6, 8e6), (64, 256, 1024)))


def table(slopes: tuple[float, ...], deviation: float, seed: int = 0) -> pd.DataFrame:
    noise = np.random.default_rng(seed).normal(scale=deviation, size=len(CELLS))
    found = pd.DataFrame(CELLS, columns=AXES)
    found["delta"] = 0.1 + np.log2(found[list(AXES)].to_numpy()) @ np.array(slopes) + noise
    return found


def test_slopes_are_nats_a_doubling() -> None:
    fitted = fit(table((0.02, -0.03, 0.01), 0.0))
    assert fitted is not None
    assert fitted.slopes == pytest.approx((0.02, -0.03, 0.01))
    assert fitted.deviation == pytest.approx(0, abs=1e-12)
    value = fitted.line({"parameters": 1e6, "tokens": 3e6, "length": 512})
    assert value == pytest.approx(0.1 + 0.02 * np.log2(1e6) - 0.03 * np.log2(3e6) + 0.01 * 9)


def test_one_axis_is_the_regression_of_scipy() -> None:
    found = table((0.0, -0.05, 0.0), 0.01)
    found = found[(found["parameters"] == 1.3e6) & (found["length"] == 256)]
    fitted = fit(found)
    assert fitted is not None
    assert fitted.axes == ("tokens",)
    theirs = scipy.stats.linregress(np.log2(found["tokens"]), found["delta"])
    assert fitted.slopes[0] == pytest.approx(theirs.slope)
    assert fitted.slope_errors[0] == pytest.approx(theirs.stderr)
    assert fitted.line({"tokens": 3e6}) == pytest.approx(
        theirs.intercept + theirs.slope * np.log2(3e6)
    )


def test_too_few_runs_say_nothing() -> None:
    found = table((0.02, -0.03, 0.01), 0.01)
    assert fit(found[:1]) is None
    assert fit(found[found["parameters"] == 1.3e6][:2]) is None


# -- crossings -------------------------------------------------------------------------------------

TOKENS = np.repeat([2e6, 4e6, 8e6, 16e6], 4)


def in_tokens(slope: float, zero: float, deviation: float, seed: int = 0) -> pd.DataFrame:
    noise = np.random.default_rng(seed).normal(scale=deviation, size=len(TOKENS))
    delta = slope * np.log2(TOKENS / zero) + noise
    return pd.DataFrame({"parameters": 1.3e6, "tokens": TOKENS, "length": 256, "delta": delta})


@pytest.mark.parametrize("zero", [1e6, 5e6, 3e8])
def test_a_line_without_noise_is_0_where_it_was_laid(zero: float) -> None:
    fitted = fit(in_tokens(-0.03, zero, 0.0))
    assert fitted is not None
    assert fitted.crossing() == pytest.approx((zero,) * 3, rel=1e-4)


@pytest.mark.parametrize("zero", [5e6, 4e7])
def test_intervals_of_a_crossing_cover_19_of_20(zero: float) -> None:
    """The crossing lies within the tested range at 5e6, and outside it at 4e7."""
    covered = 0
    for seed in range(400):
        fitted = fit(in_tokens(-0.03, zero, 0.02, seed))
        assert fitted is not None
        found = fitted.crossing()
        assert found is not None
        covered += found[1] <= zero <= found[2]
    assert 0.92 < covered / 400 < 0.98


def test_seeds_at_several_budgets_cost_little() -> None:
    """Coverage stays near 95 % in the campaigns' design: one seed at four budgets, seven at one.

    Half of the variance is the seed's own, equal at all of its budgets.
    """
    seeds = np.array([*range(8), 0, 0, 0])
    tokens = np.array([2e6] * 8 + [4e6, 8e6, 26e6])
    covered = 0
    for draw in range(600):
        random = np.random.default_rng(draw)
        noise = (random.normal(size=8)[seeds] + random.normal(size=11)) / np.sqrt(2)
        delta = -0.03 * np.log2(tokens / 1e7) + 0.02 * noise
        fitted = fit(
            pd.DataFrame({"parameters": 1.3e6, "tokens": tokens, "length": 256, "delta": delta})
        )
        assert fitted is not None
        [slope], [error] = fitted.slopes, fitted.slope_errors
        covered += abs(slope + 0.03) < fitted.quantile * error
    assert 0.89 < covered / 600 < 0.98


def test_without_a_slope_no_crossing_is_told() -> None:
    """With a true slope of 0, a crossing is reported in about 1 of 20 draws, as 95 % implies."""
    fitted = [fit(in_tokens(0.0, 1e6, 0.02, seed)) for seed in range(200)]
    num_told = sum(each is not None and each.crossing() is not None for each in fitted)
    assert 2 <= num_told <= 20


def test_the_band_of_the_line_holds_0_at_the_ends() -> None:
    """The reference is the 95 % band of the mean by scipy's regression."""
    found = in_tokens(-0.02, 6e6, 0.01, seed=3)
    fitted = fit(found)
    assert fitted is not None
    x_N = np.log2(found["tokens"])
    theirs = scipy.stats.linregress(x_N, found["delta"])
    assert fitted.slope_errors[0] == pytest.approx(theirs.stderr)
    _, low, high = fitted.crossing() or (0, 0, 0)
    for end in (low, high):
        away = np.log2(end) - x_N.mean()
        error = np.hypot(theirs.stderr * away, fitted.deviation / np.sqrt(len(x_N)))
        value = theirs.intercept + theirs.slope * np.log2(end)
        assert abs(value) == pytest.approx(fitted.quantile * error)


# -- lack of fit -----------------------------------------------------------------------------------


def test_a_straight_line_is_called_bent_once_in_twenty() -> None:
    fitted = [fit(in_tokens(-0.03, 5e6, 0.02, seed)) for seed in range(400)]
    num_bent = sum(each is not None and each.is_bent for each in fitted)
    assert 0.02 < num_bent / 400 < 0.08


def test_what_rises_and_falls_is_no_line() -> None:
    found = in_tokens(0.0, 1e6, 0.01)
    found["delta"] += np.where((found["tokens"] > 3e6) & (found["tokens"] < 1e7), 0.05, 0.0)
    fitted = fit(found)
    assert fitted is not None
    assert fitted.is_bent


def test_lack_of_fit_is_the_f_of_nested_models() -> None:
    """The reference compares the sums of squares of a line and of a mean for each budget."""
    found = in_tokens(-0.02, 5e6, 0.02, seed=3)
    fitted = fit(found)
    assert fitted is not None
    x, y = np.log2(found["tokens"]), found["delta"]
    of_line = np.sum((y - np.polyval(np.polyfit(x, y, 1), x)) ** 2)
    of_means = sum(np.var(y[found["tokens"] == tokens]) * 4 for tokens in np.unique(TOKENS))
    ratio = ((of_line - of_means) / 2) / (of_means / 12)
    assert fitted.p_straight == pytest.approx(scipy.stats.f(2, 12).sf(ratio))


def test_one_seed_a_budget_tells_no_line_from_a_curve() -> None:
    fitted = fit(in_tokens(-0.02, 5e6, 0.02)[::4])
    assert fitted is not None
    assert fitted.p_straight is None
    assert not fitted.is_bent
