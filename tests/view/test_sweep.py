"""Tests of a sweep's progress in lines."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_exp import errors, progress
from rope_exp.config import RunConfig
from rope_exp.folder import last_row, last_step, step_folder
from rope_exp.progress import SweepProgress
from rope_exp.sweep import DispatchedRun


@pytest.mark.parametrize(
    ("exit_code", "status", "summary"),
    [
        (3, "diverged, step 5, loss 4.0000", ["sweep: 2 of 2 runs ended"]),
        (75, "stopped at step 0", []),
    ],
)
def test_a_log_gets_every_change_and_a_summary(
    monkeypatch: pytest.MonkeyPatch,
    tiny: Callable[..., RunConfig],
    capsys: pytest.CaptureFixture[str],
    exit_code: int,
    status: str,
    summary: list[str],
) -> None:
    """Of two runs of six steps one is done, the other ends; a run that was stopped has not.

    Nothing estimates what nobody will wait for.
    """
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    runs = []
    for seed, step, losses in (
        (0, 6, {"train/loss": 3.5, "val/loss": 3.25}),
        (1, 5, {"train/loss": 4.0}),
    ):
        config = dataclasses.replace(tiny("pe=vo_rope"), seed=seed)
        run = DispatchedRun(config.replace("run", dir=f"{config.folder}{seed}"))
        run.folder.mkdir()
        row = {"step": step, **losses, "tokens_per_s": None}
        (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        runs.append(run)
    runs[0].exit_code = 0

    view = SweepProgress(runs)
    runs[1].exit_code = exit_code
    view.show()
    assert capsys.readouterr().err.splitlines() == [
        "vo_rope-s0: finished, step 6, loss 3.5000, val/loss 3.2500",
        "sweep: 1 of 2 runs ended",
        f"vo_rope-s1: {status}",
        *summary,
    ]


def write_step(run: DispatchedRun, step: int) -> None:
    """Write the row of a step."""
    row = {"step": step, "train/loss": 4.0, "tokens_per_s": None}
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_an_estimate_adds_a_measured_start_to_the_steps(
    monkeypatch: pytest.MonkeyPatch,
    tiny: Callable[..., RunConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two runs of 100 steps: a start takes 40 s, and a step 1 s. Together they take 280 s."""
    now = 0.0
    monkeypatch.setattr("rope_exp.progress.time.monotonic", lambda: now)
    runs = []
    for seed in (0, 1):
        config = dataclasses.replace(tiny("pe=nope", "train.num_steps=100"), seed=seed)
        config = config.replace("train", compile=True)
        runs.append(DispatchedRun(config.replace("run", dir=f"{config.folder}{seed}")))
        runs[-1].folder.mkdir()

    view = SweepProgress(runs)
    capsys.readouterr()
    lines = []
    for second in range(1, 281):
        now = float(second)
        number, age = divmod(second - 1, 140)
        run = runs[number]
        if age == 0:
            run.ranks = [subprocess.Popen(["true"])]
            run.ranks[0].wait()
        if age > 40:
            write_step(run, age - 40)
        if age == 139:
            write_step(run, 100)
            run.exit_code = 0
        view.show()
        lines += [(second, line) for line in capsys.readouterr().err.splitlines()]

    # While nothing moves, nothing is said again, and the phase is named.
    running = "sweep: 0 of 2 runs ended, no estimate yet; running: nope-s0"
    said = [line for second, line in lines if second <= 50]
    assert said == [
        "nope-s0: running, step 0",
        f"{running} starting and compiling",
        f"{running} at step 9, loss 4.0000",
    ]
    estimates = []
    for second, line in lines:
        if match := re.search(r"(\d+):(\d+) left; running: ", line):
            estimates.append((second, 60 * int(match[1]) + int(match[2])))
    assert len(estimates) > 15
    for second, seconds_left in estimates:
        assert abs(seconds_left - (280 - second)) <= 10, second
    assert lines[-1][1] == "sweep: 2 of 2 runs ended"


def test_a_terminal_redraws_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line that stays replaces the one that was redrawn; a long one is cut, so it has one row.

    The file of the log has the lines that are kept, whole.
    """
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 20))
    monkeypatch.setattr(errors, "_log_file", tmp_path / "log.txt")
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        errors.redraw("step 1 of a long run, 1:00 left", keep=True)
        errors.redraw("step 2", keep=False)
        errors.log("done")
        monkeypatch.setenv("TERM", "dumb")
        errors.redraw("step 3", keep=False)
        errors.redraw("step 4", keep=True)
        shown = ""
        while not shown.endswith("step 4\r\n"):
            shown += os.read(ours, 1000).decode()
    os.close(ours)

    clear = "\r\x1b[K"
    redrawn = f"{clear}step 1 of a long ru{clear}step 2{clear}done\r\n"
    assert shown == f"{redrawn}step 4\r\n"
    kept = "step 1 of a long run, 1:00 left\ndone\nstep 4\n"
    assert (tmp_path / "log.txt").read_text() == kept


def test_a_stopped_run_names_the_step_that_it_resumes_from(
    tiny: Callable[..., RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last row may be older: a run logs every few steps, and a stop saves at once."""
    run = DispatchedRun(tiny("pe=nope"))
    step_folder(run.folder / "checkpoints", 14).mkdir(parents=True)
    write_step(run, 10)
    view = SweepProgress([run])
    run.exit_code = 75
    view.show()
    assert "nope-s0: stopped, with a checkpoint of step 14\n" in capsys.readouterr().err


ROWS = '{"step": 1, "train/loss": 5.0}\n{"step": 2, "train/loss": 4.0}\n'


@pytest.mark.parametrize(
    ("text", "step"), [(ROWS + '{"st', 2), (ROWS + "\0\n", 2), ('{"st', 0), ("\0\n", 0), ("", 0)]
)
def test_a_row_half_written_or_damaged_is_passed_over(tmp_path: Path, text: str, step: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert last_row(tmp_path).get("step", 0) == step
    assert last_step(tmp_path) == step
