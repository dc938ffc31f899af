"""The progress of a long task in lines: of a run, of a corpus, and of the runs of a sweep."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from rope_exp.config import RunConfig
from rope_exp.errors import log
from rope_exp.folder import last_row

LINE_SECONDS = 10.0  # between two lines about one task


def describe_row(row: Mapping[str, Any]) -> str:
    """Return the losses and the speed of a row of metrics, each after a comma."""
    formats = {
        "train/loss": ", loss {:.4f}",
        "val/loss": ", val/loss {:.4f}",
        "tokens_per_s": ", {:,.0f} tokens/s",
    }
    shown = [key for key in formats if isinstance(row.get(key), int | float)]
    return "".join(formats[key].format(row[key]) for key in shown)


class Progress:
    """The progress of a long task, as a line every few seconds."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name = name
        self._total = total
        self._last_line = time.monotonic()
        self._began: tuple[float, int] | None = None

    def show(self, done: int, words: str, *, at_once: bool = False) -> None:
        """Log the progress, unless a line was logged a moment ago."""
        now = time.monotonic()
        # Time counts from the first call, after the first steps, which compile.
        began, first = self._began = self._began or (now, done)
        if at_once or now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            if self._total:
                left = "no estimate yet"
                if done > first:
                    seconds = (now - began) / (done - first) * max(self._total - done, 0)
                    left = f"{timedelta(seconds=round(seconds))} left"
                words += f", {left}"
            log(f"{self._name}: {words}")


class Watched(Protocol):
    """What the progress of a sweep reads of each run."""

    config: RunConfig

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def status(self) -> str: ...


class SweepProgress:
    """Logs the progress of the runs of a sweep, read from their metrics."""

    def __init__(self, jobs: Sequence[Watched]) -> None:
        self._jobs = jobs
        self._progress = Progress("sweep", sum(job.config.train.num_steps for job in jobs))
        self._statuses = ["waiting"] * len(jobs)
        self._line_at = 0.0
        self.show()

    def show(self, *_: object) -> None:
        """Log what has changed; metrics are read only if a line is due."""
        now = time.monotonic()
        before = self._statuses
        self._statuses = [job.status for job in self._jobs]
        if self._statuses == before and now < self._line_at:
            return
        self._line_at = now + LINE_SECONDS

        # The steps that are done or no longer due, and the runs that ended or are in progress.
        done = 0
        num_ended = 0
        running = []
        for job, status, old in zip(self._jobs, self._statuses, before, strict=True):
            row = last_row(job.folder)
            step = row.get("step", 0)
            # A stopped run has not ended: the same command resumes it.
            has_ended = status in ("finished", "diverged", "failed")
            num_ended += has_ended
            done += job.config.train.num_steps if has_ended else step
            if status == "running":
                running.append(f"{job.name} at step {step}")
            if status != old:
                log(f"{job.name}: {status}, step {step}{describe_row(row)}")
        words = f"{num_ended} of {len(before)} runs ended; running: "
        self._progress.show(done, words + (", ".join(running) or "none"))
