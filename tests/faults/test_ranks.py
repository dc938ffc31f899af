"""Tests of faults in one of several ranks, and of a run that changes its number of ranks."""

import os
import signal
from pathlib import Path

import pytest
from support.runs import Process, Trial, assert_same_losses, processes_of, sabotage, train

from rope_exp.files import read_json
from rope_exp.folder import read_metrics

TWO = "launch.num_processes=2"
FOR_EVER = "train.num_steps=100000"


def assert_failed(trial: Trial, process: Process, reason: str) -> None:
    """Assert that the run ends within 30 s, says why, and leaves no process."""
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert reason in stderr
    assert "Traceback" not in stderr
    assert not processes_of(trial.folder)


@pytest.mark.torture
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_shows_its_traceback_alone(trial: Trial, rank: int) -> None:
    """No process of the run remains, and the run resumes."""
    done = trial.train(TWO, **sabotage(rank=rank, step=25, vo_rope="raise"))
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert f"RuntimeError: sabotage of process {rank}" in done.stderr
    assert not processes_of(trial.folder)

    assert trial.train(TWO).returncode == 0
    assert_same_losses(trial.undisturbed, trial.folder, tolerance=2e-4)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.torture)])
def test_a_rank_that_is_killed_ends_the_job(trial: Trial, rank: int) -> None:
    process = trial.start(TWO, FOR_EVER, rows=15)
    os.kill(trial.ranks()[rank], signal.SIGKILL)
    assert_failed(trial, process, f"process {rank} of 2 was ended by SIGKILL")


@pytest.mark.torture
@pytest.mark.parametrize("rank", [0, 1])
def test_a_busy_rank_is_waited_for_and_a_frozen_one_not(trial: Trial, rank: int) -> None:
    """The heartbeat distinguishes them: its patience is 5 s here, and the rank is busy for 12 s."""
    busy = sabotage(rank=rank, step=15, vo_rope="busy")
    process = trial.start(TWO, FOR_EVER, rows=20, PATIENCE_S="5", **busy)
    os.kill(trial.ranks()[rank], signal.SIGSTOP)
    assert_failed(trial, process, "error: another process of this run is gone or silent")


def test_one_bad_number_on_one_rank_stops_both(tmp_path: Path, tiny_overrides: list[str]) -> None:
    """They stop before the update, so it affects no row, weight or checkpoint."""
    run = tmp_path / "run"
    command = [*tiny_overrides, "train.num_steps=20", TWO, "pe=vo_rope"]
    done = train(*command, cwd=tmp_path, **sabotage(rank=1, step=9, vo_rope="nan"))
    assert done.returncode == 3, done.stderr
    assert "diverged: after 8 steps a loss or a gradient was not finite" in done.stderr

    result = read_json(run / "result.json")
    assert result["status"] == "diverged"
    assert result["diverged_step"] == 9
    assert result["steps"] == 8
    assert [row["step"] for row in read_metrics(run)] == list(range(1, 9))
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert checkpoints == ["step_00000006", "step_00000008"]


@pytest.mark.torture
def test_four_ranks_one_killed_to_two_is_the_same_run(trial: Trial) -> None:
    """Four ranks train 20 steps or more, and two the others; the reference has one rank."""
    process = trial.start("launch.num_processes=4", rows=25)
    os.kill(trial.ranks()[2], signal.SIGKILL)
    assert_failed(trial, process, "process 2 of 4 was ended by SIGKILL")
    resumed = trial.train(TWO)
    assert resumed.returncode == 0
    assert "went on with world_size 2 after 4" in resumed.stderr
    assert "went on with world_size 2 after 4" in str(read_json(trial.folder / "env.json")["marks"])
    one, moved = (read_json(run / "result.json") for run in (trial.undisturbed, trial.folder))
    assert one["order_sha256"] == moved["order_sha256"]
    assert_same_losses(trial.undisturbed, trial.folder, tolerance=2e-4)
