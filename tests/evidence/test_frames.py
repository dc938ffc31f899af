"""Tests of the pandas frames of runs, curves, probes and tables, and of the notebooks on them."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.records import make_records, nine_losses
from support.refused import refused
from support.reports import ask, make_nine, make_run

from rope_exp import load_metrics, load_probes, load_runs, load_table
from rope_exp.evidence.published import TABLE
from rope_exp.report.command import write

ROWS = ("qk_rope", "vo_rope", "nope")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    make_records(tmp_path, "english", rows=ROWS, seeds=(0, 1))
    return tmp_path


def test_a_line_is_a_run(records: Path) -> None:
    for where in (records, records / "english"):
        runs = load_runs(where)
        assert len(runs) == 6
        line = runs.loc["english/vo_rope-s1"]
        assert (line["pe"], line["seed"], line["status"]) == ("vo_rope", 1, "finished")
        assert line["val/loss"] == nine_losses("vo_rope", 1)
        assert line["commit"] == "0123456789abcdef"


def test_run_folders_and_their_records_give_the_same_curves(tmp_path: Path) -> None:
    make_nine(tmp_path / "runs")
    of_runs = load_metrics(tmp_path / "runs")
    make_records(
        tmp_path / "records", "english", seeds=(0,), loss=lambda row, _: TABLE.losses[row] + 1.0
    )
    of_records = load_metrics(tmp_path / "records")
    assert len(of_runs) == len(of_records) == 9 * 50
    curves = ["pe", "seed", "step", "tokens", "train/loss", "val/loss"]
    for key in curves:
        assert of_runs[key].equals(of_records[key]), key
    assert of_records.dropna(subset=["val/loss"])["step"].unique().tolist() == list(
        range(50, 501, 50)
    )


def test_every_key_that_tells_runs_apart_is_there(tmp_path: Path) -> None:
    """A key that only one campaign varies is a column for the runs of both."""
    warmup = "schedule.warmup_fraction"
    make_records(tmp_path, "english", rows=ROWS, seeds=(0,), factors={warmup: [0.05, 0.2]})
    heavy = ["pe=vo_rope", "optim.weight_decay=0.3"]
    make_records(tmp_path, "other", rows={"heavy": heavy}, loss=lambda *_: 4.0)
    for frame in (load_runs(tmp_path), load_metrics(tmp_path)):
        found = frame.drop_duplicates("where").set_index("where")
        own = found.filter(like="other/", axis="index")
        assert len(own) == 5
        assert set(own[warmup]) == {0.2}
        assert set(own["optim.weight_decay"]) == {0.3}
        assert set(found["optim.weight_decay"]) == {0.1, 0.3}
        assert sorted(set(found[warmup])) == [0.05, 0.2]
        assert "train.global_batch_size" not in frame.columns


def test_a_run_that_was_set_aside_is_none(tmp_path: Path) -> None:
    """`run.fresh=true` moves the old run to a hidden folder beside the new one."""
    make_run(tmp_path, loss=3.9)
    [where] = load_runs(tmp_path)["where"]
    folder = tmp_path / where
    folder.rename(folder.with_name(f".{folder.name}.old-1"))
    make_run(tmp_path, loss=3.5)
    assert load_runs(tmp_path)["val/loss"].tolist() == [3.5]


def test_a_factor_may_be_a_list(tmp_path: Path) -> None:
    betas = [0.9, 0.95]
    make_records(tmp_path, "betas", rows=ROWS[:1], seeds=(0,), factors={"optim.betas": [betas]})
    metrics = load_metrics(tmp_path)
    assert metrics["optim.betas"].tolist() == [betas] * len(metrics)


def test_a_run_that_is_not_done_has_no_loss(tmp_path: Path) -> None:
    make_run(tmp_path, loss=None, steps=20)
    [line] = load_runs(tmp_path).to_dict("records")
    assert (line["status"], line["val/loss"]) == ("unfinished", None)


def test_a_table_is_by_variant(tmp_path: Path) -> None:
    make_nine(tmp_path / "runs", seeds=(0, 1))
    write(tmp_path / "runs", None, tmp_path)
    for where in (tmp_path, tmp_path / "table.csv"):
        table = load_table(where)
        assert table.loc["nope", "rotate"] == ""
        assert table.loc["vo_rope", "delta"] == pytest.approx(0.058)
        assert table.loc["vo_rope", "verdict"] == "worse"


def test_an_answer_has_a_line_for_each_place(records: Path) -> None:
    answers = load_probes(records)
    assert answers["where"].nunique() == 6
    of_run = answers[answers["where"] == "english/vo_rope-s1"]
    loss = nine_losses("vo_rope", 1)

    longer = of_run[of_run["probe"] == "positions"].set_index("at")["value"]
    assert longer.to_dict() == {256: loss, 512: loss + 0.01, 1024: loss + 0.05, 2048: loss + 0.2}
    without = of_run[of_run["probe"] == "ablation"].set_index("at")["value"]
    assert without.to_dict() == {"": loss, "o": loss + 0.3, "v": loss + 0.3}


def test_run_folders_give_their_answers_too(tmp_path: Path) -> None:
    ask(make_run(tmp_path), {"shift": {"start": [0, 64], "loss": [3.5, None]}})
    make_run(tmp_path, pe="nope")
    answers = load_probes(tmp_path)
    assert answers["where"].tolist() == ["g/qk_rope/seed0"] * 2
    assert answers["at"].tolist() == [0, 64]
    assert answers["value"].tolist() == [3.5, pytest.approx(float("nan"), nan_ok=True)]


def test_runs_that_were_asked_nothing_have_no_line(tmp_path: Path) -> None:
    make_run(tmp_path)
    answers = load_probes(tmp_path)
    assert answers.empty
    assert {"where", "pe", "probe", "at", "value"} <= set(answers.columns)


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    with refused("holds neither runs nor records"):
        load_runs(tmp_path)
    with refused("is not a table.csv"):
        load_table(tmp_path)


@pytest.mark.parametrize("name", ["differences", "curves", "probes"])
def test_an_example_runs(records: Path, name: str) -> None:
    script = REPOSITORY / "docs" / "notebooks" / f"{name}.py"
    command = [sys.executable, "-W", "error", str(script), "--records", str(records / "english")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vo_rope" in done.stdout


def test_a_factor_of_the_launcher_is_a_column(tmp_path: Path) -> None:
    """No other key of the launcher is told, as these change no number."""
    make_records(tmp_path, "noise", rows=ROWS[:1], factors={"launch.num_threads": [1, 2]})
    assert set(load_runs(tmp_path)["launch.num_threads"]) == {1, 2}
