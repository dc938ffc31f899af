"""Tests of the pilot's noise statistics, on losses that are sums of known parts."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.records import make_records
from support.refused import refused
from support.reports import sha256_of

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.studies.noise import (
    bootstrap_error,
    changes,
    files,
    rounding,
    spreads,
    window_errors,
)

ROWS = ("qk_rope", "vo_rope", "nope")
# Offsets of every row's loss, by the seed of the weights and by that of the order.
OF_WEIGHTS = {100: 0.0, 101: 0.04, 102: -0.02, 103: 0.01}
OF_ORDER = {100: 0.0, 101: -0.01, 102: 0.03, 103: 0.02}
# Changes of the loss by another rounding, by row and seed. At the second seed, VO has none.
CHANGES = (("qk_rope", 100, 0.01), ("qk_rope", 101, 0.02), ("vo_rope", 100, 0.01))


@pytest.fixture
def plain(tmp_path: Path) -> Run:
    make_records(tmp_path, "noise", rows=["qk_rope"], seeds=[100])
    return read_records(tmp_path, "noise")[0]


def cell(plain: Run, row: str, seed: int, order: int, **factors: Any) -> Run:
    """Return a run whose loss is the row's, plus its seeds' offsets, plus a small own part."""
    own = 0.001 * ROWS.index(row) * (seed - 100)
    loss = 3.0 + ROWS.index(row) + OF_WEIGHTS[seed] + OF_ORDER[order] + own
    loss += 0.002 * len(factors)
    config = plain.config.replace("data", seed=order)
    return replace(
        plain,
        config=replace(config, seed=seed),
        row=row,
        factors={"seed": seed, "data.seed": order, **factors},
        result=plain.result | {"val/loss": loss, "init_sha256": sha256_of(f"init {seed}")},
    )


def pilot(plain: Run) -> list[Run]:
    runs = []
    for row, (seed, order) in itertools.product(ROWS, itertools.product(OF_WEIGHTS, OF_ORDER)):
        if 100 in (seed, order) or seed == order:
            runs.append(cell(plain, row, seed, order))
    return runs


def sds(found: pd.DataFrame) -> list[dict[tuple[str, str], float]]:
    """Return the SDs for each source of variation, by quantity and kind."""
    return [
        {(line["of"], line["kind"]): line["sd"] for line in part.to_dict("records")}
        for _, part in found.groupby("what", sort=False)
    ]


def test_spreads_are_the_deviations_of_what_varies(plain: Run) -> None:
    found = spreads(pilot(plain))
    weights, order, both = sds(found)
    assert set(found["values"]) == {4}
    assert weights["qk_rope", "loss"] == pytest.approx(np.std(list(OF_WEIGHTS.values()), ddof=1))
    assert order["nope", "loss"] == pytest.approx(np.std(list(OF_ORDER.values()), ddof=1))
    sums = [OF_WEIGHTS[seed] + OF_ORDER[seed] for seed in OF_WEIGHTS]
    assert both["qk_rope", "loss"] == pytest.approx(np.std(sums, ddof=1))


def test_pairing_takes_away_what_rows_share(plain: Run) -> None:
    """Pairing removes all variation by order, and leaves the row's own part of that by weights."""
    weights, order, _ = sds(spreads(pilot(plain)))
    pair = "vo_rope - qk_rope"
    assert order[pair, "paired"] == pytest.approx(0, abs=1e-9)
    own = np.std([0.001 * place for place in range(4)], ddof=1)
    assert weights[pair, "paired"] == pytest.approx(own)
    a, b = weights["qk_rope", "loss"], weights["vo_rope", "loss"]
    assert weights[pair, "unpaired"] == pytest.approx(math.hypot(a, b))


def test_each_rate_is_a_pilot_of_its_own(plain: Run) -> None:
    """Losses spread three times as far at 0.001, which affects only the SD at that rate."""
    runs = pilot(plain)
    for row, seed in itertools.product(ROWS, OF_WEIGHTS):
        run = cell(plain, row, seed, seed)
        loss = 5.0 + 3 * (OF_WEIGHTS[seed] + OF_ORDER[seed])
        slower = run.config.replace("optim", lr=0.001)
        factors = run.factors | {"optim.lr": 0.001}
        result = run.result | {"val/loss": loss}
        runs.append(replace(run, config=slower, factors=factors, result=result))
    table = spreads(runs)
    of_row = table[(table["of"] == "qk_rope") & (table["kind"] == "loss")]
    found = dict(zip(of_row["what"], of_row["sd"], strict=True))
    assert list(found) == [
        "weights and order, at learning rate 0.001",
        "initial weights, at learning rate 0.003",
        "order of batches, at learning rate 0.003",
        "weights and order, at learning rate 0.003",
    ]
    assert found["weights and order, at learning rate 0.001"] == pytest.approx(
        3 * found["weights and order, at learning rate 0.003"]
    )
    assert len(rounding(runs)) == 0


def test_two_values_say_nothing_of_a_deviation(plain: Run) -> None:
    runs = [cell(plain, "qk_rope", seed, seed) for seed in (100, 101)]
    assert spreads(runs).empty


def test_a_deviation_of_four_is_known_within_a_factor(plain: Run) -> None:
    """By chi-squared with 3 degrees of freedom, the 95 % interval is 0.57 to 3.73 times the SD."""
    said = files(["noise"], {"noise": pilot(plain)}, {})["noise/noise.md"].decode()
    low, high = (math.sqrt(3 / stats.chi2.ppf(q, 3)) for q in (0.975, 0.025))
    assert f"{low:.2f} to {high:.2f}" in said


def test_an_unfinished_pilot_says_what_it_can(plain: Run) -> None:
    """It may hold one run, a diverged one, a change without its plain cell, or no shared seed."""
    diverged = replace(
        cell(plain, "vo_rope", 100, 100),
        result={**plain.result, "status": "diverged", "val/loss": None},
        probes={},
    )
    alone = cell(plain, "nope", 101, 101, **{"train.compile": False})
    for runs in ([plain], [plain, diverged], [alone], [plain, diverged, alone]):
        assert "noise/noise.md" in files(["noise"], {"noise": runs}, {})


def test_a_seed_under_two_numbers_is_refused(plain: Run) -> None:
    copied = replace(plain, config=replace(plain.config, seed=101))
    with refused("have seeds 100 and 101, but the same init_sha256"):
        files(["noise"], {"noise": [plain, copied]}, {})


def test_rounding_is_held_against_the_same_seeds(plain: Run) -> None:
    runs = pilot(plain) + [
        cell(plain, row, 100, 100, **{"train.compile": False}) for row in ROWS[:2]
    ]
    assert changes(runs[-1]) == {"train.compile": False}
    table = rounding(runs)
    [line] = table.to_dict("records")
    assert (line["rate"], line["change"]) == (0.003, "train.compile=false")
    assert line["qk_rope"] == pytest.approx(0.002)
    assert line["vo_rope - qk_rope"] == pytest.approx(0, abs=1e-12)


def test_the_bootstrap_finds_the_error_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(size=512)
    assert bootstrap_error(values, 1) == pytest.approx(values.std(ddof=1) / 512**0.5, rel=0.03)


def test_blocks_see_what_neighbours_share() -> None:
    """Eight equal neighbours count as one value, so the error is sqrt(8) times as large."""
    values = np.repeat(np.random.default_rng(0).normal(size=64), 8)
    alone = bootstrap_error(values, 1)
    assert bootstrap_error(values, 8) == pytest.approx(8**0.5 * alone, rel=0.05)


def test_window_errors_are_of_differences_averaged_over_seeds(plain: Run) -> None:
    runs = []
    random = np.random.default_rng(0)
    shared = random.normal(scale=0.5, size=64)
    own = random.normal(scale=0.05, size=64)
    for row, seed in itertools.product(ROWS[:2], OF_WEIGHTS):
        windows = shared + own * ROWS.index(row) + OF_WEIGHTS[seed]
        run = cell(plain, row, seed, seed)
        runs.append(replace(run, probes={"windows": {"loss": windows.tolist()}}))
    [found] = window_errors(runs).to_dict("records")
    assert found["windows"] == 64
    assert found["seeds"] == len(OF_WEIGHTS)
    assert found["error"] == pytest.approx(own.std(ddof=1) / 8, rel=0.05)


def test_rounding_at_several_seeds_has_a_line_for_each(plain: Run) -> None:
    """A pair's change is taken within one seed, and is NaN at a seed that one row lacks."""
    without = {"train.compile": False}
    added = [(cell(plain, row, seed, seed, **without), change) for row, seed, change in CHANGES]
    changed = [
        replace(run, result={**run.result, "val/loss": run.result["val/loss"] + change})
        for run, change in added
    ]
    first, second = rounding(pilot(plain) + changed).to_dict("records")
    assert first["vo_rope - qk_rope"] == pytest.approx(0, abs=1e-12)
    assert second["qk_rope"] - first["qk_rope"] == pytest.approx(0.01)
    assert np.isnan(second["vo_rope - qk_rope"])
