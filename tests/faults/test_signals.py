"""Tests of stop signals: from a person or a scheduler, to one rank, once or twice."""

import os
import signal
import time
from itertools import product
from pathlib import Path

import pytest
from support.runs import (
    Trial,
    assert_same_run,
    num_rows,
    processes_of,
    start,
    stopped_by,
    train,
    wait_for,
)

from rope_exp.signals import STOP_SIGNALS

# This does what nohup does before it executes the command.
NOHUP = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
STOPS = product(("start", "step", "save"), STOP_SIGNALS)


def is_at(moment: str, run: Path) -> bool:
    """Return whether a run has reached the moment at which it is to be stopped."""
    if moment == "start":
        return (run / "config.yaml").exists()
    if moment == "step":
        return num_rows(run) >= 13
    return any((run / "checkpoints").glob(".saving-*"))


@pytest.mark.parametrize(
    ("moment", "number"),
    [("step", signal.SIGTERM), *(pytest.param(*stop, marks=pytest.mark.torture) for stop in STOPS)],
)
def test_asked_to_stop_it_exits_75_and_goes_on(
    trial: Trial, moment: str, number: signal.Signals
) -> None:
    """It saves every recorded row, and the resumed run is the same bit for bit."""
    process = trial.start("train.save_every=3")
    wait_for(lambda: is_at(moment, trial.folder), process)
    if moment == "start":
        time.sleep(1.0)
    stopped_by(process, number)
    assert not (trial.folder / "result.json").exists()
    assert not list((trial.folder / "checkpoints").glob(".saving-*"))
    if moment != "start" or trial.checkpoints():
        assert trial.checkpoints()[-1] == trial.num_rows()
    trial.assert_goes_on("train.save_every=3")


@pytest.mark.torture
def test_under_nohup_a_closed_terminal_stops_nothing(trial: Trial) -> None:
    process = start(*trial.words, cwd=trial.folder.parent, launcher=("-c", NOHUP))
    wait_for(lambda: trial.num_rows() >= 5, process)
    for pid in processes_of(trial.folder):
        os.kill(pid, signal.SIGHUP)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert_same_run(trial.undisturbed, trial.folder)


@pytest.mark.torture
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_is_asked_makes_both_save(trial: Trial, tmp_path: Path, rank: int) -> None:
    """Both stop at the same step, and the run resumes bit for bit."""
    words = ["train.num_steps=40", "train.micro_batch_size=1", "launch.num_processes=2"]
    undisturbed = tmp_path / "undisturbed"
    assert train(*trial.command, *words, f"run.dir={undisturbed}", cwd=tmp_path).returncode == 0

    process = trial.start(*words, rows=5)
    ranks = trial.ranks()
    assert len(ranks) == 2
    os.kill(ranks[rank], signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    assert trial.checkpoints()[-1] == trial.num_rows() < 40

    assert trial.train(*words).returncode == 0
    assert_same_run(undisturbed, trial.folder)
