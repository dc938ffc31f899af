"""Lines in logarithms: known slopes are found, and intervals cover as often as they say."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from rope_exp.evidence.ladders import AXES, fit

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
    value, low, high = fitted.predict({"parameters": 1e9, "tokens": 16e9, "length": 4096})
    expected = 0.1 + 0.02 * np.log2(1e9) - 0.03 * np.log2(16e9) + 0.01 * 12
    assert (value, low, high) == pytest.approx((expected,) * 3)


def test_one_axis_is_the_regression_of_scipy() -> None:
    found = table((0.0, -0.05, 0.0), 0.01)
    found = found[(found["parameters"] == 1.3e6) & (found["length"] == 256)]
    fitted = fit(found)
    assert fitted is not None
    assert fitted.axes == ("tokens",)
    theirs = scipy.stats.linregress(np.log2(found["tokens"]), found["delta"])
    assert fitted.slopes[0] == pytest.approx(theirs.slope)
    at = {"parameters": 1.3e6, "tokens": 16e6, "length": 256}
    assert fitted.predict(at)[0] == pytest.approx(theirs.intercept + theirs.slope * np.log2(16e6))


def test_prediction_intervals_cover_19_of_20() -> None:
    random = np.random.default_rng(1)
    at = {"parameters": 1e8, "tokens": 1e9, "length": 2048}
    true = 0.1 + 0.02 * np.log2(1e8) - 0.03 * np.log2(1e9) + 0.01 * np.log2(2048)
    covered = 0
    for seed in range(400):
        fitted = fit(table((0.02, -0.03, 0.01), 0.02, seed))
        assert fitted is not None
        _, low, high = fitted.predict(at)
        covered += low <= true + random.normal(scale=0.02) <= high
    assert 0.92 < covered / 400 < 0.98


def test_too_few_runs_say_nothing() -> None:
    found = table((0.02, -0.03, 0.01), 0.01)
    assert fit(found[:1]) is None
    assert fit(found[found["parameters"] == 1.3e6][:2]) is None
