"""Tests of how gains between rows change from one setting to another, seed by seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rope_exp.studies.changes import compare_noise, find_changes

LABELS = ("nope", "qk_rope", "vo_rope", "k_rope")
SEEDS = range(3)
cells = st.lists(
    st.floats(2.0, 6.0), min_size=len(LABELS) * len(SEEDS), max_size=len(LABELS) * len(SEEDS)
)


def losses(values: list[float]) -> dict[str, dict[int, float]]:
    table = np.array(values).reshape(len(LABELS), len(SEEDS))
    return {label: dict(enumerate(row)) for label, row in zip(LABELS, table, strict=True)}


@given(cells, cells, st.floats(-1, 1), st.sampled_from(LABELS))
def test_a_change_is_the_gain_here_minus_the_gain_there(
    here: list[float], there: list[float], of_seed: float, over: str
) -> None:
    """An offset that all rows of a seed share cancels. The largest change comes first."""
    ours = losses(here)
    theirs = losses(there)
    moved = {label: {seed: x + of_seed * seed for seed, x in ours[label].items()} for label in ours}

    found = find_changes(moved, theirs, over)
    assert {change.label for change in found} == set(LABELS) - {over}
    assert [change.mean for change in found] == sorted((c.mean for c in found), reverse=True)
    for change in found:
        for seed, value in change.by_seed.items():
            gain_here = ours[over][seed] - ours[change.label][seed]
            gain_there = theirs[over][seed] - theirs[change.label][seed]
            assert value == pytest.approx(gain_here - gain_there, abs=1e-9)
        assert change.mean == pytest.approx(change.gain_here - change.gain_there, abs=1e-9)


def test_the_interval_is_that_of_the_paired_t() -> None:
    """Each interval uses its change's own values, so a noisy row does not widen another's."""
    rng = np.random.default_rng(5)
    deviations = {"nope": 0.01, "qk_rope": 0.01, "vo_rope": 0.5}
    here, there = (
        {label: dict(enumerate(rng.normal(0, sd, size=6))) for label, sd in deviations.items()}
        for _ in range(2)
    )
    for change in find_changes(here, there, "nope"):
        assert change.judged is not None
        wanted = stats.ttest_1samp(list(change.by_seed.values()), 0.0)
        interval = wanted.confidence_interval()
        assert change.judged.p == pytest.approx(wanted.pvalue)
        found = (change.judged.low, change.judged.high)
        assert found == pytest.approx((interval.low, interval.high))


def test_seeds_count_that_both_have_with_nope() -> None:
    here = {"nope": {0: 5.0, 1: 5.0}, "qk_rope": {0: 4.0, 1: 4.5, 2: 1.0}, "vo_rope": {2: 4.0}}
    there = {"nope": {0: 6.0, 2: 6.0}, "qk_rope": {0: 5.75, 2: 1.0}, "vo_rope": {2: 4.0}}
    [change] = find_changes(here, there, "nope")
    assert dict(change.by_seed) == {0: 0.75}
    assert change.judged is None


def test_without_nope_nothing_is_gained() -> None:
    assert find_changes({"qk_rope": {0: 4.0}}, {"qk_rope": {0: 5.0}}, "nope") == []


# -- noise of both settings ------------------------------------------------------------------------


def drawn(deviation: float, seed: int, num_seeds: int = 5) -> dict[str, dict[int, float]]:
    noise = np.random.default_rng(seed).normal(scale=deviation, size=(len(LABELS), num_seeds))
    return {label: dict(enumerate(4 + row)) for label, row in zip(LABELS, noise, strict=True)}


def test_noise_is_of_the_runs_that_both_have() -> None:
    """The reference is double centring with 12 degrees of freedom, and twice the smaller F tail."""
    here, there = drawn(0.01, 0), drawn(0.03, 1, num_seeds=8)
    found = compare_noise(here, there)
    assert found is not None
    deviations = []
    for losses in (here, there):
        x = np.array([[losses[label][seed] for seed in range(5)] for label in LABELS])
        e = x - x.mean(0) - x.mean(1)[:, None] + x.mean()
        deviations.append(np.sqrt(np.sum(e**2) / 12))
    ours, theirs, p = found
    assert (ours.deviation, theirs.deviation) == pytest.approx(tuple(deviations))
    tail = stats.f(12, 12).cdf((deviations[0] / deviations[1]) ** 2)
    assert p == pytest.approx(2 * tail)


def test_equal_noise_is_called_unequal_once_in_twenty() -> None:
    found = [compare_noise(drawn(0.02, draw), drawn(0.02, draw + 1000)) for draw in range(300)]
    called = sum(each is not None and each[2] < 0.05 for each in found)
    assert 0.02 < called / 300 < 0.09


def test_one_seed_leaves_no_noise() -> None:
    assert compare_noise(drawn(0.02, 0, num_seeds=1), drawn(0.02, 1)) is None
