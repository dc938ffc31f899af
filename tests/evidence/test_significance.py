"""Tests of the significance tests, against scipy, closed forms and simulated data."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from rope_exp.stats import (
    MARGIN,
    SIGNS,
    adjusted_means,
    holm,
    outcome,
    paired_test,
    power_of_further_seeds,
    table_of,
)
from rope_exp.stats import judge as judge_by

Losses = Mapping[int, float]

ROWS = "abcdefghi"


def drawn(
    means: dict[str, float], seeds: int, deviation: float, seed: int = 0
) -> dict[str, Losses]:
    """Return losses of a layout: a mean for each row, an effect for each seed, and noise."""
    random = np.random.default_rng(seed)
    effects = random.normal(scale=0.05, size=seeds)
    losses: dict[str, Losses] = {}
    for row, mean in means.items():
        noise = random.normal(scale=deviation, size=seeds)
        losses[row] = {k: float(mean + effects[k] + noise[k]) for k in range(seeds)}
    return losses


def judge(
    losses: dict[str, Losses], family: list[tuple[str, str]] | None = None
) -> list[dict[Any, Any]]:
    """Return the judged pairs of a family, or all."""
    return judge_by(table_of(losses), family or combinations(losses, 2)).to_dict("records")


def test_equivalence_is_two_one_sided_tests() -> None:
    """For one pair, without adjustment, p is the larger of scipy's two one-sided p-values."""
    losses = drawn({"a": 3.0, "b": 3.004}, seeds=8, deviation=0.004)
    [pair] = judge(losses, [("a", "b")])
    table = table_of(losses)
    differences = table["b"] - table["a"]
    above = stats.ttest_1samp(differences, 0.01, alternative="less").pvalue
    below = stats.ttest_1samp(differences, -0.01, alternative="greater").pvalue
    assert pair["p_equivalent"] == pytest.approx(max(above, below))


@pytest.mark.parametrize("holes", [0, 5])
def test_means_for_missing_seeds_are_least_squares(holes: int) -> None:
    """Subtracting row and column means alternately until convergence gives the same fit.

    Ranks follow these means. Without holes they are the plain ones.
    """
    table = np.random.default_rng(2).normal(size=(8, 9))
    table[5:, :holes] = np.nan
    fitted = np.zeros_like(table)
    for _ in range(2000):
        fitted += np.nanmean(table - fitted, axis=0, keepdims=True)
        fitted += np.nanmean(table - fitted, axis=1, keepdims=True)
    means = adjusted_means(pd.DataFrame(table, columns=[*ROWS]))
    np.testing.assert_allclose(means, fitted.mean(axis=0), atol=1e-8)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_the_step_down_of_its_definition(p: list[float]) -> None:
    """The k-th smallest p is multiplied by n - k + 1, and raised to its predecessor's value."""
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    expected = np.minimum(np.maximum.accumulate(np.array(p)[order] * factors), 1)
    np.testing.assert_allclose(holm(np.array(p))[order], expected)


def test_seeds_that_one_row_lacks_are_left_out_of_its_pairs() -> None:
    losses = drawn({"a": 3.0, "b": 3.1, "c": 3.2}, seeds=8, deviation=0.01)
    losses["c"] = {seed: losses["c"][seed] for seed in range(5)}
    ab, ac, _ = judge(losses)
    assert ab["num_seeds"] == 8
    assert ac["num_seeds"] == 5
    shared = [losses["c"][seed] - losses["a"][seed] for seed in range(5)]
    assert ac["delta"] == pytest.approx(np.mean(shared))


@pytest.mark.parametrize(
    ("gap", "verdict", "sign"),
    [
        (0.2, "better", ">"),
        (-0.2, "worse", "<"),
        (0.0, "equivalent", "≈"),
        (0.006, "equivalent", "≈"),
        (0.012, "open", "?"),
    ],
)
def test_verdicts(gap: float, verdict: str, sign: str) -> None:
    """The gaps are clear in either direction, zero, or near the margin with few, noisy seeds.

    One is real but below the margin, like half of a published gap: it confirms only so much.
    """
    losses = drawn(dict.fromkeys(ROWS, 3.0) | {"b": 3.0 + gap}, seeds=8, deviation=0.001)
    if verdict == "open":
        losses = drawn({"a": 3.0, "b": 3.0 + gap}, seeds=3, deviation=0.02)
    [pair] = judge(losses, [("a", "b")])
    assert pair["verdict"] == verdict
    assert pair["sign"] == sign
    assert pd.isna(pair["seeds_needed_low"]) == (verdict != "open")
    if gap == 0.006:
        assert pair["p"] < 1e-6
        assert outcome(pair, ">") == "confirmed, by less than the margin"


@pytest.mark.parametrize(
    ("verdict", "interval", "of_better", "of_equal"),
    [
        ("better", (0.02, 0.04), "confirmed", "contradicted"),
        ("better", (0.005, 0.04), "confirmed", "open"),
        ("equivalent", (-0.005, 0.005), "contradicted", "confirmed"),
        ("worse", (-0.04, -0.02), "contradicted", "contradicted"),
        ("open", (-0.01, 0.05), "open", "open"),
    ],
)
def test_outcomes_of_published_relations(
    verdict: str, interval: tuple[float, float], of_better: str, of_equal: str
) -> None:
    [pair] = judge(drawn(dict.fromkeys(ROWS, 3.0), seeds=5, deviation=0.01), [("a", "b")])
    ends = {"delta_wide_low": interval[0], "delta_wide_high": interval[1]}
    pair = {**pair, "verdict": verdict, "sign": SIGNS[verdict], **ends}
    assert outcome(pair, ">") == of_better
    assert outcome(pair, "≈") == of_equal


def test_equal_losses_are_equivalent_and_divide_by_nothing() -> None:
    losses: dict[str, Losses] = {row: dict.fromkeys(range(3), 3.0) for row in "abc"}
    for pair in judge(losses):
        assert pair["delta"] == 0.0
        assert pair["verdict"] == "equivalent"


def test_fewer_than_two_shared_seeds_are_judged_nothing() -> None:
    assert judge({"a": {0: 3.0}, "b": {0: 3.1}, "c": {1: 3.0}}) == []
    assert judge({}) == []


def is_settled(differences_SN: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each line of differences whether a pair alone has a verdict by them."""
    detected = stats.ttest_1samp(differences_SN, 0, axis=1).pvalue < 0.05
    below = stats.ttest_1samp(differences_SN, MARGIN, axis=1, alternative="less").pvalue
    above = stats.ttest_1samp(differences_SN, -MARGIN, axis=1, alternative="greater").pvalue
    return np.asarray(detected | (np.maximum(below, above) < 0.05))


def with_further(
    recorded: NDArray[np.float64], further_SN: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the recorded differences before each line of further ones."""
    return np.hstack([np.tile(recorded, (len(further_SN), 1)), further_SN])


def test_one_pair_is_a_paired_t_test_of_scipy() -> None:
    random = np.random.default_rng(4)
    first, second = random.normal(size=(2, 8))
    expected = stats.ttest_rel(second, first)
    low, high = expected.confidence_interval(0.95)
    test = paired_test(second - first)
    np.testing.assert_allclose(
        [test.p, test.delta_ci_low, test.delta_ci_high], [expected.pvalue, low, high], rtol=1e-12
    )


@pytest.mark.parametrize("num_further", [1, 4, 30])
@pytest.mark.parametrize("true_delta", [-0.005, 0.005, 0.03])
def test_power_of_further_seeds_is_that_of_simulations(true_delta: float, num_further: int) -> None:
    """The recorded seeds stay; the SD is drawn from what they leave open, and then the others."""
    recorded = np.random.default_rng(1).normal(0.01, 0.02, 8)
    test = paired_test(recorded)
    random = np.random.default_rng(0)
    sd_S1 = recorded.std(ddof=1) * np.sqrt(7 / random.chisquare(7, (20_000, 1)))
    further_SN = random.normal(true_delta, sd_S1, (20_000, num_further))
    share = is_settled(with_further(recorded, further_SN)).mean()
    assert power_of_further_seeds(test, true_delta)[num_further - 1] == pytest.approx(
        share, abs=0.02
    )


@pytest.mark.parametrize("num_seeds", [3, 8])
@pytest.mark.parametrize("true_delta", [0.0, 0.005, 0.02])
def test_seeds_needed_settle_four_of_five_open_pairs(num_seeds: int, true_delta: float) -> None:
    """Experiments with a known difference: the further seeds that an open pair asks for are drawn.

    The estimate knows neither the true difference nor the true SD. Half the margin is the hardest.
    """
    random = np.random.default_rng(2)
    shares = []
    for _ in range(40):
        recorded = random.normal(true_delta, 0.02, num_seeds)
        table = pd.DataFrame({"a": np.zeros(num_seeds), "b": recorded})
        [needed] = judge_by(table, [("a", "b")])["seeds_needed_high"]
        if not pd.isna(needed):
            further_SN = random.normal(true_delta, 0.02, (50, needed - num_seeds))
            shares.append(is_settled(with_further(recorded, further_SN)).mean())
    assert len(shares) > 10
    assert np.mean(shares) > 0.77


def test_no_ninth_seed_is_promised_if_none_can_settle_the_pair() -> None:
    """The nine seeds may have a large mean, but then their SD is large, too."""
    recorded = np.array([0.05, -0.04, 0.03, -0.02, 0.05, -0.03, 0.01, 0.02])
    ninths = np.linspace(-1, 1, 2001)[:, None]
    assert not is_settled(with_further(recorded, ninths)).any()
    table = pd.DataFrame({"a": np.zeros(8), "b": recorded})
    [pair] = judge_by(table, [("a", "b")]).to_dict("records")
    assert 9 < pair["seeds_needed_low"] < pair["seeds_needed_high"]
