"""The progress of a sweep: every change of a run's status, and a summary now and then."""

import time
from collections.abc import Sequence

from rope_exp.errors import LINE_SECONDS, Progress, describe_row, log
from rope_exp.folder import last_row
from rope_exp.sweep import Job


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
