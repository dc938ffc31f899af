"""Tests of the pandas frames of runs, curves, probes and tables, and of the notebooks on them."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import RECORDED, REPOSITORY
from support.records import copy_records, runs_of
from support.refused import refused
from support.reports import ask, make_run

from rope_exp import load_metrics, load_probes, load_runs, load_table
from rope_exp.campaign.tables import write_campaigns
from rope_exp.report import Report


def test_a_line_is_a_run() -> None:
    """Both a folder of campaigns and one campaign are read."""
    [run] = runs_of("english", "vo_rope", seeds=(1,))
    runs = load_runs(RECORDED / "english")
    assert len(runs) == 27
    line = runs.loc[run.where]
    assert line["pe"] == "vo_rope"
    assert line["seed"] == 1
    assert line["status"] == "finished"
    assert line["val/loss"] == run.loss
    assert line["commit"] == run.env["git"]["commit"]
    curve = load_metrics(RECORDED / "english").set_index("where").loc[run.where]
    assert curve["train/loss"].to_list() == [row["train/loss"] for row in run.metrics]


def test_every_key_that_tells_runs_apart_is_there(tmp_path: Path) -> None:
    """A key that only one campaign varies is a column for the runs of both."""
    copy_records(tmp_path, "lr", "nope-optim.lr=0.003-s0", "nope-optim.lr=0.006-s0")
    copy_records(tmp_path, "english", "nope-s0")
    for frame in (load_runs(tmp_path), load_metrics(tmp_path)):
        found = frame.drop_duplicates("where").set_index("where")["optim.lr"]
        assert found["lr/nope-optim.lr=0.006-s0"] == 0.006
        assert found["english/nope-s0"] == 0.0015
        assert "train.global_batch_size" not in frame.columns


def test_factors_are_columns_even_lists(tmp_path: Path) -> None:
    """A factor of the launcher is a column too, though no other key of it changes a number."""
    assert set(load_runs(RECORDED / "noise")["launch.num_threads"]) > {1}
    for group, betas in (("a", [0.9, 0.95]), ("b", [0.8, 0.95])):
        make_run(tmp_path, group=group, overrides=[f"optim.betas={betas}"])
    assert load_runs(tmp_path)["optim.betas"].tolist() == [[0.9, 0.95], [0.8, 0.95]]


def test_a_run_that_was_set_aside_is_none(tmp_path: Path) -> None:
    """It has a hidden name; an unfinished run has no loss."""
    make_run(tmp_path, loss=3.9)
    [where] = load_runs(tmp_path)["where"]
    folder = tmp_path / where
    folder.rename(folder.with_name(f".{folder.name}.old-1"))
    make_run(tmp_path, loss=None, steps=20)
    [line] = load_runs(tmp_path).to_dict("records")
    assert line["status"] == "unfinished"
    assert line["val/loss"] is None


def test_a_table_is_by_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Report, "charts", {})
    folder = tmp_path / "english"
    write_campaigns(RECORDED, "english", tmp_path)
    for where in (folder, folder / "table.csv"):
        table = load_table(where)
        assert table.loc["nope", "rotate"] == ""
        assert table["delta"]["vo_rope"] > 0
    with refused("is not a table.csv"):
        load_table(tmp_path)
    with refused("holds neither runs nor records"):
        load_runs(folder)


def test_an_answer_has_a_line_for_each_place(tmp_path: Path) -> None:
    """A run that was asked nothing has no line."""
    [run] = runs_of("english", "vo_rope", seeds=(1,))
    answers = load_probes(RECORDED / "english")
    of_run = answers[answers["where"] == run.where].set_index("at")
    for probe, places, losses in (
        ("positions", "lengths", "loss_at_length"),
        ("ablation", "without", "loss"),
    ):
        answer = run.probes[probe]
        values = of_run[of_run["probe"] == probe]["value"]
        assert values.to_dict() == dict(zip(answer[places], answer[losses], strict=True))

    make_run(tmp_path, pe="nope")
    assert load_probes(tmp_path).empty
    ask(make_run(tmp_path), {"shift": {"start": [0, 64], "loss": [3.5, None]}})
    of_folders = load_probes(tmp_path)
    assert of_folders["where"].tolist() == ["g/qk_rope/seed0"] * 2
    assert of_folders["at"].tolist() == [0, 64]
    assert of_folders["value"].tolist() == [3.5, pytest.approx(float("nan"), nan_ok=True)]


@pytest.mark.parametrize(
    "name",
    ["differences", *(pytest.param(n, marks=pytest.mark.torture) for n in ("curves", "probes"))],
)
def test_an_example_runs(name: str) -> None:
    script = REPOSITORY / "docs" / "notebooks" / f"{name}.py"
    command = [sys.executable, "-W", "error", str(script), "--records", str(RECORDED / "english")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "vo_rope" in done.stdout
