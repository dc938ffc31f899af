"""Tests of the significance tests, against scipy, closed forms and simulated data."""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rope_exp.stats import MARGIN, SIGNS, adjusted_means, holm, outcome, table_of
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
    assert [ab["num_seeds"], ac["num_seeds"]] == [8, 5]
    shared = [losses["c"][seed] - losses["a"][seed] for seed in range(5)]
    assert ac["delta"] == pytest.approx(np.mean(shared))


@pytest.mark.parametrize(
    ("gap", "verdict", "sign"),
    [
        (0.2, "better", ">"), (-0.2, "worse", "<"), (0.0, "equivalent", "≈"),
        (0.006, "equivalent", "≈"), (0.012, "open", "?"),
    ],
)  # fmt: skip
def test_verdicts(gap: float, verdict: str, sign: str) -> None:
    """The gaps are clear in either direction, zero, or near the margin with few, noisy seeds.

    One is real but below the margin, like half of a published gap: it confirms only so much.
    """
    losses = drawn(dict.fromkeys(ROWS, 3.0) | {"b": 3.0 + gap}, seeds=8, deviation=0.001)
    if verdict == "open":
        losses = drawn({"a": 3.0, "b": 3.0 + gap}, seeds=3, deviation=0.02)
    [pair] = judge(losses, [("a", "b")])
    assert (pair["verdict"], pair["sign"]) == (verdict, sign)
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
    assert (outcome(pair, ">"), outcome(pair, "≈")) == (of_better, of_equal)


def test_equal_losses_are_equivalent_and_divide_by_nothing() -> None:
    losses: dict[str, Losses] = {row: dict.fromkeys(range(3), 3.0) for row in "abc"}
    for pair in judge(losses):
        assert (pair["delta"], pair["verdict"]) == (0.0, "equivalent")


def test_fewer_than_two_shared_seeds_are_judged_nothing() -> None:
    assert judge({"a": {0: 3.0}, "b": {0: 3.1}, "c": {1: 3.0}}) == judge({}) == []


def test_seeds_needed_are_what_settles_the_pair() -> None:
    """In simulations the power is about 0.8 for the easiest and the hardest difference alike."""
    losses = drawn({"a": 3.0, "b": 3.0}, seeds=5, deviation=0.012, seed=3)
    [pair] = judge(losses, [("a", "b")])
    assert pair["verdict"] == "open"
    assert pair["delta_ci_low"] < 0 < pair["delta_ci_high"]
    assert pair["num_seeds"] < pair["seeds_needed_low"] < pair["seeds_needed_high"]

    deviation = pair["error"] * math.sqrt(pair["num_seeds"])
    random = np.random.default_rng(0)

    def share_settled(difference: float, num_seeds: int) -> float:
        drawn_SN = random.normal(difference, deviation, (4000, num_seeds))
        detected = stats.ttest_1samp(drawn_SN, 0, axis=1).pvalue < 0.05
        below = stats.ttest_1samp(drawn_SN, MARGIN, axis=1, alternative="less").pvalue < 0.05
        above = stats.ttest_1samp(drawn_SN, -MARGIN, axis=1, alternative="greater").pvalue
        return float((detected | (below & (above < 0.05))).mean())

    largest = max(pair["delta_ci_low"], pair["delta_ci_high"], key=abs)
    assert 0.7 < share_settled(largest, pair["seeds_needed_low"]) < 0.92
    assert 0.7 < share_settled(MARGIN / 2, pair["seeds_needed_high"]) < 0.92
    assert share_settled(0.0, pair["seeds_needed_high"]) > 0.75
