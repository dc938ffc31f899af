"""Tests of means, SDs, differences and ranks against sums by hand, and of laws for any losses."""

import math
from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.published import TABLE
from rope_exp.stats import summary, table_of

Losses = Mapping[int, float]

losses = st.floats(0.0, 20.0, allow_subnormal=False)
labels = st.sampled_from([*TABLE.losses, "qv_rope", "mine"])
tables = st.dictionaries(labels, st.dictionaries(st.integers(0, 5), losses, max_size=5), min_size=1)


def compare(losses: Mapping[str, Losses], reference: str) -> dict[str, dict[str, Any]]:
    """Return the contrasts of rows by label, best first."""
    frame = summary(table_of(losses), reference)
    lines: Any = frame.astype(object).where(frame.notna(), None).to_dict("index")
    return dict(lines)


def test_delta_is_the_mean_of_differences_within_seeds() -> None:
    """Delta averages over the seeds that both have finished; it is no difference of means."""
    losses = {"qk": {0: 3.0, 1: 3.5, 2: 9.0}, "vo": {0: 3.1, 1: 3.8, 7: 1.0}}
    assert compare(losses, "qk")["vo"]["delta"] == np.mean([3.1 - 3.0, 3.8 - 3.5])


def test_rows_are_ranked_by_hand_and_one_without_a_run_is_last() -> None:
    """Equal losses share the better rank; one seed has no standard deviation."""
    table: dict[str, Losses] = {
        "none": {},
        "a": {0: 2.0},
        "z": {0: 1.0},
        "c": {0: 2.0},
        "d": {0: 3.0},
    }
    lines = compare(table, "a")
    ranks = [(label, line["rank"]) for label, line in lines.items()]
    assert ranks == [("z", 1), ("a", 2), ("c", 2), ("d", 4), ("none", None)]
    assert lines["d"]["loss_mean"] == 3.0
    assert lines["d"]["loss_sd"] is None
    assert [*lines["none"].values()] == [0, None, None, None, None]
    of_three = compare({"vo": {0: 3.0, 1: 4.0, 2: 8.0}}, "vo")["vo"]
    assert of_three["loss_mean"] == 5.0
    assert of_three["loss_sd"] == math.sqrt((4 + 1 + 9) / 2)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, unique=True))
def test_ranks_need_seeds_that_connect_all_rows(cells: list[tuple[int, int]]) -> None:
    """If losses are seed part + row part, any connected table gives the order of the rows."""
    part_S = [0.0, 3.0, -2.0, 0.5, 7.0, 1.0]
    part_V = [0.3, 0.1, 0.5, 0.2, 0.6, 0.4]
    table: dict[str, dict[int, float]] = {}
    for seed, row in cells:
        table.setdefault(str(row), {})[seed] = part_S[seed] + part_V[row]

    # Collect the rows that shared seeds connect with the first.
    reached = {min(table)}
    for _ in table:
        seeds = {seed for label in reached for seed in table[label]}
        reached |= {label for label, losses in table.items() if seeds & losses.keys()}

    ranks = {label: row["rank"] for label, row in compare(table, "0").items()}
    expected = sorted(table, key=lambda label: part_V[int(label)])
    if reached == table.keys():
        assert ranks == {label: rank for rank, label in enumerate(expected, start=1)}
    else:
        assert set(ranks.values()) == {None}


@given(tables, st.integers(0, 10**6))
def test_any_losses_give_rows_that_agree_in_any_order(table: dict[str, Losses], seed: int) -> None:
    base = table.get("qk_rope", {})
    lines = compare(table, "qk_rope")
    for label, line in lines.items():
        own = table[label]
        assert line["num_seeds"] == len(own)
        assert (line["loss_mean"] is None) == (not own)
        assert (line["delta"] is None) == (not own.keys() & base.keys())
        if own and own.keys() == base.keys():
            expected = line["loss_mean"] - np.mean([*base.values()])
            assert line["delta"] == pytest.approx(expected, abs=1e-12)

    random = Random(seed)
    shuffled = {
        label: dict(random.sample([*table[label].items()], len(table[label])))
        for label in random.sample([*table], len(table))
    }
    assert compare(shuffled, "qk_rope") == lines
