"""Tests of a sweep's progress in lines."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_exp import progress
from rope_exp.config import RunConfig
from rope_exp.folder import last_row, last_step
from rope_exp.progress import SweepProgress
from rope_exp.sweep import Job


@pytest.mark.parametrize(
    ("exit_code", "status", "summary"),
    [
        (3, "diverged", "2 of 2 runs ended; running: none, 0:00:00 left"),
        (75, "stopped", "1 of 2 runs ended; running: none, no estimate yet"),
    ],
)
def test_a_log_gets_every_change_and_a_summary(
    monkeypatch: pytest.MonkeyPatch,
    tiny: Callable[..., RunConfig],
    capsys: pytest.CaptureFixture[str],
    exit_code: int,
    status: str,
    summary: str,
) -> None:
    """Of two runs of six steps one is done, the other ends; a run that was stopped has not."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    jobs = []
    for seed, step, losses in (
        (0, 6, {"train/loss": 3.5, "val/loss": 3.25}),
        (1, 5, {"train/loss": 4.0}),
    ):
        config = dataclasses.replace(tiny("pe=vo_rope"), seed=seed)
        job = Job(config.replace("run", dir=f"{config.folder}{seed}"))
        job.folder.mkdir()
        row = {"step": step, **losses, "tokens_per_s": None}
        (job.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        jobs.append(job)
    jobs[0].exit_code = 0

    view = SweepProgress(jobs)
    jobs[1].exit_code = exit_code
    view.show()
    assert capsys.readouterr().err.splitlines() == [
        "vo_rope-s0: finished, step 6, loss 3.5000, val/loss 3.2500",
        "sweep: 1 of 2 runs ended; running: none, no estimate yet",
        f"vo_rope-s1: {status}, step 5, loss 4.0000",
        f"sweep: {summary}",
    ]


ROWS = '{"step": 1, "train/loss": 5.0}\n{"step": 2, "train/loss": 4.0}\n'


@pytest.mark.parametrize(
    ("text", "step"), [(ROWS + '{"st', 2), (ROWS + "\0\n", 2), ('{"st', 0), ("\0\n", 0), ("", 0)]
)
def test_a_row_half_written_or_damaged_is_passed_over(tmp_path: Path, text: str, step: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert last_row(tmp_path).get("step", 0) == step
    assert last_step(tmp_path) == step
