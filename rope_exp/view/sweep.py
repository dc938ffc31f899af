"""The progress of a sweep: every change of a run's status, and a summary now and then."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rope_exp.errors import LINE_SECONDS, Progress, RecordError, describe_row, log
from rope_exp.files import parse_json, readable
from rope_exp.folder import METRICS, MetricsRow, checked
from rope_exp.ranks import Job

NEWEST_BYTES = 4096  # enough for several rows


class View:
    """Logs the progress of the runs of a sweep, read from their metrics."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._progress = Progress("sweep", sum(job.config.train.num_steps for job in jobs))
        self._statuses = ["waiting"] * len(jobs)
        self._line_at = 0.0
        self.show()

    def show(self, *_: object) -> None:
        """Log what has changed; metrics are read only if a line is due."""
        now = time.monotonic()
        statuses = [job.status for job in self._jobs]
        if statuses == self._statuses and now < self._line_at:
            return
        self._line_at = now + LINE_SECONDS

        # The steps that are done or no longer due, and the runs that ended or are in progress.
        done = 0
        num_ended = 0
        running = []
        for job, status, before in zip(self._jobs, statuses, self._statuses, strict=True):
            row = newest_values(job.folder)
            step = row.get("step", 0)
            # A stopped run has not ended: the same command resumes it.
            has_ended = status in ("finished", "diverged", "failed")
            num_ended += has_ended
            done += job.config.train.num_steps if has_ended else step
            if status == "running":
                running.append(f"{job.name} at step {step}")
            if status != before:
                log(f"{job.name}: {status}{describe_row(row)}")
        self._statuses = statuses
        words = (
            f"{num_ended} of {len(statuses)} runs ended; running: {', '.join(running) or 'none'}"
        )
        self._progress.show(done, words)


def newest_values(folder: Path) -> dict[str, Any]:
    """Return the newest value of each column in the last rows; {} if no row can be read."""
    values: dict[str, Any] = {}
    path = folder / METRICS
    with suppress(RecordError), readable(path):
        content = b"\n" + path.read_bytes()
        # The first line may lack its beginning, and the last its end.
        for line in content[-NEWEST_BYTES:].split(b"\n")[1:-1]:
            values |= checked(METRICS, parse_json(METRICS, line), MetricsRow)
    return values
