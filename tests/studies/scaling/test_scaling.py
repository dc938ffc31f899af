"""Tests of scaling.md: lines in logarithms, crossings, and the order at each size and budget."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.records import make_records, nine_losses
from support.refused import refused

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.spelling import NOTHING
from rope_exp.studies.scaling import scaling
from rope_exp.studies.scaling.orders import orders

STEPS = [250, 500, 1000, 2000]
# All warm up for at least 100 steps.
ROWS = {
    row: [f"pe={row}", "schedule.warmup_fraction=0.5"]
    for row in ("qk_rope", "qkvo_rope", "vo_rope", "qkv_rope")
}


def lines_of(text: str, beginning: str) -> list[list[str]]:
    """Return the cells of the table rows with this beginning."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [row for row in rows if row[0] == beginning]


def runs_where_qkvo_falls_back(folder: Path, zero: int) -> list[Run]:
    """Return four rows at four budgets, with a lead of QKVO over QK that is 0 at `zero` steps."""
    for steps in STEPS:

        def loss(row: str, seed: int, steps: int = steps) -> float:
            lead = 0.05 * (np.log2(steps / zero)) if row == "qkvo_rope" else 0.0
            return nine_losses("qk_rope" if row == "qkvo_rope" else row, seed) + lead

        factors = {"train.num_steps": [steps]}
        make_records(folder, f"of_{steps}", rows=ROWS, seeds=(0,), loss=loss, factors=factors)
    return [run for steps in STEPS for run in read_records(folder, f"of_{steps}")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Return runs with the crossing at twice the longest budget; no test changes them."""
    return runs_where_qkvo_falls_back(tmp_path_factory.mktemp("records"), 4000)


@pytest.fixture(scope="module")
def ladder(runs: list[Run]) -> str:
    return scaling(runs)


# -- as tokens grow --------------------------------------------------------------------------------


def test_a_crossing_within_the_ladder_is_found(tmp_path: Path) -> None:
    """QKVO equals QK at 700 steps, and the line has no noise."""
    text = scaling(runs_where_qkvo_falls_back(tmp_path, 700))
    [line] = lines_of(text, "qkvo_rope minus qk_rope")
    assert float(line[4].split()[0]) == pytest.approx(0.05, abs=0.005)
    assert line[-1] == f"{700 * 16 * 256 / 1e6:.3g}M ({700 * 16 * 256 / 1e6:.3g}M)"


def test_a_crossing_beyond_the_ladder_is_no_place(ladder: str) -> None:
    """A crossing outside the tested range is not quantified (docs/protocol.md)."""
    [line] = lines_of(ladder, "qkvo_rope minus qk_rope")
    assert line[-1] == "outside the tested range: after 8.19M (after 8.19M)"


def test_what_does_not_move_has_no_crossing(ladder: str) -> None:
    [line] = lines_of(ladder, "vo_rope minus qk_rope")
    assert "unclear" in line[-1]


def test_what_rises_and_falls_tells_no_crossing(tmp_path: Path) -> None:
    """Two seeds at the first budget measure the noise, and the third budget is far off a line."""
    leads = {250: -0.05, 500: -0.02, 1000: 0.12, 2000: 0.04}
    for steps, lead in leads.items():

        def loss(row: str, seed: int, lead: float = lead) -> float:
            return 3.0 + (lead + 0.002 * seed if row == "vo_rope" else 0.0)

        factors = {"train.num_steps": [steps]}
        make_records(
            tmp_path,
            f"of_{steps}",
            rows={row: ROWS[row] for row in ("qk_rope", "vo_rope")},
            seeds=(0, 1) if steps == 250 else (0,),
            loss=loss,
            factors=factors,
        )
    read = [run for steps in leads for run in read_records(tmp_path, f"of_{steps}")]
    [line] = lines_of(scaling(read), "vo_rope minus qk_rope")
    assert line[-1] == "unclear: not a straight line"


def test_the_order_stands_at_each_budget(ladder: str, runs: list[Run]) -> None:
    """Each cell has the mean difference within a seed, and the number of seeds."""
    [head] = lines_of(ladder, "variant")[1:]
    assert [name.split(", ")[1] for name in head[1:]] == [
        "1.02M (0.77)", "2.05M (1.5)", "4.1M (3.1)", "8.19M (6.2)"
    ]  # fmt: skip
    losses = {(run.config.pe.label, run.config.train.num_steps): run.loss for run in runs}
    for row in ROWS:
        line = lines_of(ladder, row)[-1]
        deltas = [losses[row, steps] - losses["qk_rope", steps] for steps in STEPS]
        assert line[1:] == [f"{delta:+.3f} (1)" for delta in deltas]


def test_orders_of_two_sizes_are_held_together(tmp_path: Path) -> None:
    """The larger size swaps two neighbours; lines are sorted by the level with the most runs."""
    places = {64: ("qk_rope", "vo_rope", "qkvo_rope"), 128: ("vo_rope", "qk_rope", "qkvo_rope")}
    for width, order in places.items():
        make_records(
            tmp_path,
            f"of_{width}",
            rows={row: ROWS[row] for row in order},
            seeds=(0, 1) if width == 128 else (0,),
            loss=lambda row, seed, order=order: 4.0 + 0.1 * order.index(row) + 0.01 * seed,
            factors={"model.hidden_size": [width], "train.num_steps": [1000]},
        )
    found = [run for width in places for run in read_records(tmp_path, f"of_{width}")]
    said, table = orders(found, 256)
    assert "at length 256" in said
    head, _, *lines = (line.strip("| ").split(" | ") for line in table.splitlines())
    small, large = head[1:]
    assert [line[0] for line in lines[:3]] == ["vo_rope", "qk_rope", "qkvo_rope"]
    assert lines[0][1:] == ["+0.100 (1)", "-0.100 (2)"]
    assert lines[3:] == [
        [f"tau with {small}", NOTHING, "0.33 (n = 3)"],
        [f"tau with {large}", "0.33 (n = 3)", NOTHING],
    ]
    assert orders(found, 128) == orders(found[:3], 256) == []


def test_a_variant_that_the_fullest_level_lacks_has_a_line(tmp_path: Path) -> None:
    for width, rows, seeds in ((64, ("qk_rope", "qkvo_rope"), range(4)), (128, tuple(ROWS), (0,))):
        make_records(
            tmp_path,
            f"of_{width}",
            rows={row: ROWS[row] for row in rows},
            seeds=seeds,
            loss=nine_losses,
            factors={"model.hidden_size": [width]},
        )
    found = [run for width in (64, 128) for run in read_records(tmp_path, f"of_{width}")]
    _, table = orders(found, 256)
    for row in ROWS:
        assert len(lines_of(table, row)) == 1


def test_two_runs_of_one_place_are_refused(tmp_path: Path) -> None:
    """The two runs have different held-out windows, and a fit could use only one of them."""
    for count in (128, 256):
        factors = {"train.eval_sequences": [count]}
        make_records(tmp_path, f"of_{count}", rows=ROWS, seeds=(0,), factors=factors)
    found = [run for count in (128, 256) for run in read_records(tmp_path, f"of_{count}")]
    with refused("the same variant, seed, size, budget and length"):
        scaling(found)


def test_sizes_that_are_spelled_alike_are_two_columns(tmp_path: Path) -> None:
    make_records(tmp_path, "one", rows=ROWS, seeds=(0,), loss=nine_losses)
    found = list(read_records(tmp_path, "one"))
    nearly = [
        replace(run, result={**run.result, "params": run.result["params"] + 1}) for run in found
    ]
    _, table = orders([*found, *nearly], 256)
    _, first, second = table.partition("\n")[0].strip("| ").split(" | ")
    assert first == second


def test_an_axis_that_did_not_vary_is_named(ladder: str) -> None:
    assert "Not varied: parameters and length" in ladder


# -- runs of a line --------------------------------------------------------------------------------


def test_a_cell_stands_on_a_line_once(runs: list[Run]) -> None:
    """A run that counts twice would make the noise look smaller than it is."""
    again = [run for run in runs if run.group == "of_250"]
    with refused("are both", "keep one of them"):
        scaling([*runs, *again])


def test_short_warmups_are_on_no_line(runs: list[Run], tmp_path: Path) -> None:
    """Rows suffer unequally from a short warmup (docs/protocol.md)."""
    rows = {row: [f"pe={row}", "schedule.warmup_fraction=0.05"] for row in ROWS}
    factors = {"train.num_steps": [1900]}
    make_records(tmp_path, "short", rows=rows, seeds=(0,), factors=factors)
    with_short = scaling([*runs, *read_records(tmp_path, "short")])
    assert with_short == scaling(runs)


def test_what_else_differs_is_no_line(runs: list[Run], tmp_path: Path) -> None:
    factors = {"optim.lr": [0.01], "train.num_steps": [4000]}
    make_records(tmp_path, "faster", rows=ROWS, seeds=(0,), factors=factors)
    with refused("optim.lr"):
        scaling([*runs, *read_records(tmp_path, "faster")])
