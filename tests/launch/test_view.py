"""Tests of a sweep's progress display."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_exp import sweep as view
from rope_exp.config import RunConfig
from rope_exp.jobs import Job
from rope_exp.sweep import SweepView

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def jobs(tiny: Callable[..., RunConfig], tmp_path: Path) -> list[Job]:
    """Return two runs of six steps: one is done, the other waits."""
    jobs = []
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        config = dataclasses.replace(tiny("pe=vo_rope"), seed=seed)
        jobs.append(Job(config.replace("run", dir=str(folder))))
    write_row(jobs[0], step=6, losses={"train/loss": 3.5, "val/loss": 3.25})
    jobs[0].exit_code = 0
    return jobs


def write_row(job: Job, *, step: int, losses: dict[str, float]) -> None:
    with (job.folder / "metrics.jsonl").open("a") as file:
        print(json.dumps({"step": step, **losses, "tokens_per_s": None}), file=file)


@pytest.mark.parametrize(
    ("exit_code", "said"),
    [
        (3, ["vo_rope-s1: diverged, loss 4.0000", "2 of 2 runs ended"]),
        (75, ["vo_rope-s1: stopped, loss 4.0000", "1 of 2 runs ended, 0:00:00 left"]),
    ],
)
def test_a_log_gets_every_change_and_a_summary(
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[Job],
    capsys: Capture,
    exit_code: int,
    said: list[str],
) -> None:
    """A run that was stopped has not ended."""
    monkeypatch.setattr(view, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(view, "LINE_SECONDS", 0.0)
    with SweepView(jobs) as shown:
        done, summary = capsys.readouterr().err.splitlines()
        assert done == "vo_rope-s0: finished, loss 3.5000, val 3.2500"
        assert "1 of 2 runs ended, no estimate yet" in summary

        write_row(jobs[1], step=5, losses={"train/loss": 4.0})
        jobs[1].exit_code = exit_code
        shown.refresh()
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == len(said)
        assert all(words in line for words, line in zip(said, lines, strict=True))


@pytest.mark.parametrize("content", ["no JSON\n", '{"step": 2, "train/loss": "x"}\n', "\0"])
def test_a_broken_curve_is_left_to_its_run(jobs: list[Job], capsys: Capture, content: str) -> None:
    """The run's own log reports it; the display only shows no loss."""
    (jobs[1].folder / "metrics.jsonl").write_text(content)
    jobs[1].exit_code = 2
    with SweepView(jobs):
        pass
    assert capsys.readouterr().err.splitlines()[-1] == "vo_rope-s1: failed"
