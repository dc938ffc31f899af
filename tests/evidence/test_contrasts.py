"""Means, deviations, differences and ranks against sums done by hand, and laws that hold for any losses."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from rope_exp.evidence.contrasts import (
    Row,
    Variant,
    compare,
    deviation,
    kendall_tau,
    mean,
    paired_differences,
    ranks,
)
from rope_exp.evidence.published import LOSSES

losses = st.floats(0.0, 20.0, allow_subnormal=False)
tables = st.dictionaries(
    st.sampled_from([*LOSSES, "qv_rope", "mine"]),
    st.dictionaries(st.integers(0, 5), losses, max_size=5),
    min_size=1,
)


def rows_of(
    loss_by_seed: dict[str, dict[int, float]], reference: str = "qk_rope"
) -> dict[str, Row]:
    variants = [
        Variant(label, label.upper(), (), values, "finished" if values else "diverged")
        for label, values in loss_by_seed.items()
    ]
    return {row.label: row for row in compare(variants, reference, LOSSES)}


def test_mean_and_deviation_are_those_of_a_hand_count() -> None:
    row = rows_of({"vo_rope": {0: 3.0, 1: 4.0, 2: 8.0}})["vo_rope"]
    assert row.num_seeds == 3
    assert row.loss_mean == 5.0
    assert row.loss_sd == math.sqrt((4 + 1 + 9) / 2)


def test_one_seed_has_no_deviation_and_none_has_no_mean() -> None:
    assert (mean([2.5]), deviation([2.5])) == (2.5, None)
    assert (mean([]), deviation([])) == (None, None)


def test_delta_is_the_mean_of_differences_within_seeds_that_both_finished() -> None:
    qk, vo = {0: 3.0, 1: 3.5, 2: 9.0}, {0: 3.1, 1: 3.8, 7: 1.0}
    row = rows_of({"qk_rope": qk, "vo_rope": vo})["vo_rope"]
    differences = np.array([3.1 - 3.0, 3.8 - 3.5])
    assert row.delta == float(np.mean(differences))
    assert row.delta_sd == float(np.std(differences, ddof=1))
    assert row.loss_mean is not None
    assert row.delta != pytest.approx(row.loss_mean - np.mean([3.0, 3.5, 9.0]))
    assert paired_differences(vo, qk) == {0: 3.1 - 3.0, 1: 3.8 - 3.5}


def test_without_a_shared_seed_or_a_reference_there_is_no_delta() -> None:
    assert rows_of({"qk_rope": {0: 3.0}, "vo_rope": {1: 3.1}})["vo_rope"].delta is None
    row = rows_of({"vo_rope": {1: 3.1}})["vo_rope"]
    assert (row.delta, row.published_delta) == (None, 2.770 - 2.712)


def test_published_differences_are_against_the_same_reference_as_ours() -> None:
    rows = rows_of({"nope": {0: 3.0}, "vo_rope": {0: 2.9}, "qv_rope": {0: 3.2}}, reference="nope")
    assert rows["vo_rope"].published_delta == 2.770 - 2.795
    assert rows["qv_rope"].published_loss is None
    assert (
        rows_of({"qv_rope": {0: 3.0}, "nope": {0: 3.0}}, reference="qv_rope")[
            "nope"
        ].published_delta
        is None
    )


def test_a_variant_without_a_finished_run_is_last_and_has_a_word_for_a_number() -> None:
    rows = rows_of({"a": {}, "qk_rope": {0: 3.0}, "z": {0: 2.0}})
    assert list(rows) == ["z", "qk_rope", "a"]
    last = rows["a"]
    assert (last.verdict, last.num_seeds) == ("diverged", 0)
    assert (last.loss_mean, last.loss_sd, last.delta, last.delta_sd, last.rank) == (None,) * 5


def test_equal_losses_share_the_better_rank() -> None:
    assert ranks({"a": 2.0, "b": 1.0, "c": 2.0, "d": 3.0}) == {"b": 1, "a": 2, "c": 2, "d": 4}


def test_tau_counts_pairs_by_hand() -> None:
    # Of 6 pairs: a-b tied in ours; c before d in ours, after it in theirs; the other 4 agree.
    ours, theirs = (
        {"a": 1.0, "b": 1.0, "c": 2.0, "d": 3.0},
        {"a": 1.0, "b": 2.0, "c": 4.0, "d": 3.0},
    )
    tau, n = kendall_tau(ours, theirs)
    assert n == 4
    assert tau == pytest.approx((4 - 1) / math.sqrt((6 - 1) * 6), abs=1e-15)


def test_tau_leaves_out_variants_that_only_one_side_has() -> None:
    ours = {"qk_rope": 1.0, "nope": 3.0, "k_rope": 2.0, "qv_rope": 0.5, "mine": 9.0}
    assert kendall_tau(ours, LOSSES) == (1.0, 3)


@pytest.mark.parametrize("ours", [{}, {"nope": 1.0}, {"nope": 1.0, "qk_rope": 1.0}])
def test_tau_of_fewer_than_two_or_of_equals_is_undefined(ours: dict[str, float]) -> None:
    assert kendall_tau(ours, LOSSES) == (None, len(ours))


@given(st.dictionaries(st.sampled_from(list(LOSSES)), losses, min_size=2))
def test_tau_is_scipys_and_that_of_counting(ours: dict[str, float]) -> None:
    tau, n = kendall_tau(ours, LOSSES)
    pairs = list(combinations(ours, 2))
    signs = [np.sign(ours[a] - ours[b]) * np.sign(LOSSES[a] - LOSSES[b]) for a, b in pairs]
    untied = sum(sign != 0 for sign in signs)
    assert n == len(ours)
    if untied == 0:
        assert tau is None
    else:
        assert tau == pytest.approx(sum(signs) / math.sqrt(untied * len(pairs)), abs=1e-12)
        labels = sorted(ours)
        assert tau == kendalltau([ours[a] for a in labels], [LOSSES[a] for a in labels]).statistic


@given(tables)
def test_any_losses_give_rows_that_agree_with_one_another(
    loss_by_seed: dict[str, dict[int, float]],
) -> None:
    rows = rows_of(loss_by_seed)
    numbered = [row for row in rows.values() if row.loss_mean is not None]
    assert list(rows.values())[: len(numbered)] == numbered  # those without a number are last
    having = [losses for losses in loss_by_seed.values() if losses]
    shared = set.intersection(*map(set, having)) if having else set()
    if (
        shared
    ):  # ranks are read from the seeds that all share: other means differ by their seeds too
        means = [
            float(np.mean([loss_by_seed[row.label][seed] for seed in sorted(shared)]))
            for row in numbered
        ]
        assert means == sorted(means)
        assert [row.rank for row in numbered] == [means.index(value) + 1 for value in means]
    else:
        assert all(row.rank is None for row in numbered)
    for row in rows.values():
        mine, base = loss_by_seed[row.label], loss_by_seed.get("qk_rope", {})
        assert row.num_seeds == len(mine)
        assert (row.loss_mean is None) == (not mine)
        assert row.rank is None or mine
        assert (row.delta is None) == (not mine.keys() & base.keys())
        if row.delta is not None and mine.keys() == base.keys() and row.loss_mean is not None:
            assert row.delta == pytest.approx(
                row.loss_mean - float(np.mean(list(base.values()))), abs=1e-12
            )
        if row.label == "qk_rope" and mine:
            assert row.delta == 0.0


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_variants_and_seeds_does_not_matter(
    loss_by_seed: dict[str, dict[int, float]], random: np.random.Generator
) -> None:
    shuffled = {}
    for label in random.sample(list(loss_by_seed), len(loss_by_seed)):  # type: ignore[attr-defined]
        seeds = loss_by_seed[label]
        shuffled[label] = {seed: seeds[seed] for seed in random.sample(list(seeds), len(seeds))}  # type: ignore[attr-defined]
    assert list(rows_of(loss_by_seed).items()) == list(rows_of(shuffled).items())
