"""Tests of a report's figures, and of the tables that add another campaign's rows."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.records import make_records
from support.reports import make_run, report_of, table_rows

from rope_exp.evidence.records import read_records
from rope_exp.report.command import write_campaigns
from rope_exp.report.content import build
from rope_exp.report.gather import beside, of_report

STEPS = {"train.num_steps": [1000]}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return records of two budgets, two learning rates, and rows without the reference."""
    records = tmp_path_factory.mktemp("records")
    make_records(records, "short", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(records, "long", rows=("qk_rope", "nope"), seeds=(0,), factors=STEPS)
    make_records(records, "lr", rows=("nope",), seeds=(0,), factors={"optim.lr": [0.001, 0.002]})
    make_records(records, "more", rows=("vo_rope",), seeds=(0, 1))
    return records


def test_of_several_with_the_reference_the_largest_stands_beside(tmp_path: Path) -> None:
    """Only one campaign is added: with all that fit, the table would change with each new one."""
    make_records(tmp_path, "a", rows=("qk_rope", "nope"), seeds=(0,))
    make_records(tmp_path, "b", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(tmp_path, "c", rows=("v_rope", "k_rope", "o_rope"), seeds=(0, 1))
    make_records(tmp_path, "more", rows=("vo_rope",), seeds=(0, 1))
    mine = read_records(tmp_path, "more")

    lent = {name: read_records(tmp_path, name) for name in "abc"}
    found = beside(mine, [run for runs in lent.values() for run in runs])
    assert found is not None
    assert found.groups == "b, more"
    assert beside(mine, lent["c"]) is None


@pytest.mark.torture
def test_each_level_without_the_reference_stands_beside_its_like(tmp_path: Path) -> None:
    make_records(tmp_path / "records", "short", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(tmp_path / "records", "long", rows=("qk_rope",), seeds=(0, 1), factors=STEPS)
    both = {"train.num_steps": [500, 1000, 2000]}
    make_records(tmp_path / "records", "more", rows=("vo_rope",), seeds=(0, 1), factors=both)
    write_campaigns(tmp_path / "records", "more", tmp_path)

    tables = {path.parent for path in (tmp_path / "more").rglob("beside/table.md")}
    levels = [tmp_path / "more" / f"train.num_steps={steps}" for steps in (500, 1000)]
    assert tables == {level / "beside" for level in levels}
    assert set(table_rows(levels[0] / "beside")) == {"qk_rope", "nope", "vo_rope"}
    assert set(table_rows(levels[1] / "beside")) == {"qk_rope", "vo_rope"}


@pytest.mark.parametrize("broken", ["blocks", "weights"])
def test_runs_of_others_that_do_not_fit_are_left_out(records: Path, broken: str) -> None:
    """Two versions of torch or different initial weights in a block do not fail the report."""
    lent = []
    for run in read_records(records, "short"):
        if broken == "blocks":
            lent.append(replace(run, env={**run.env, "torch": "9.0"}))
        else:
            lent.append(replace(run, result={**run.result, "init_sha256": "0" * 64}))
    assert beside(read_records(records, "more"), lent) is None


def test_figures_have_the_same_bytes_for_runs_in_any_order(tmp_path: Path) -> None:
    make_records(tmp_path, "c", rows=("qk_rope", "vo_rope", "nope"), seeds=(0, 1))
    runs = read_records(tmp_path, "c")
    files = of_report(build(runs, ["pe"]))
    assert set(files) == {f"figures/{name}.svg" for name in ("forest", "curves", "probes", "grid")}
    assert files == of_report(build(runs[::-1], ["pe"]))


def test_one_run_alone_leaves_out_what_it_cannot_show(tmp_path: Path) -> None:
    make_run(tmp_path, pe="vo_rope")
    assert {Path(name).stem for name in of_report(report_of(tmp_path))} == {"curves"}


@pytest.mark.parametrize("steps", [0, 20])
def test_a_run_that_has_hardly_begun_draws_nothing(tmp_path: Path, steps: int) -> None:
    make_run(tmp_path, loss=None, steps=steps)
    assert of_report(report_of(tmp_path)) == {}
