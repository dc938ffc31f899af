"""Progress display of a whole sweep: a bar for each run on a terminal, plain lines otherwise."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from rope_exp.launch.job import Job
from rope_exp.run.metrics import newest_values
from rope_exp.system.console import Bars, Estimate, describe_row, log

REFRESH_SECONDS = 1.0
LINE_SECONDS = 30.0  # between plain lines about all running jobs

# A stopped run has not ended: the same command resumes it.
ENDED = ("finished", "diverged", "failed")


class SweepView(contextlib.AbstractContextManager["SweepView"]):
    """Displays the progress of runs, read from their metrics."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._num_steps = sum(job.config.train.num_steps for job in jobs)
        self._estimate: Estimate | None = None
        self._last_line = time.monotonic()
        self._refreshed = 0.0

        # By job: the newest value of each column, and the status that was shown last.
        self._rows: list[dict[str, Any]] = [{} for _ in jobs]
        self._said = ["waiting"] * len(jobs)

        self._bars = Bars()
        # First, so that a terminal too short for all bars shows it.
        self._sweep = self._bars.add_task("sweep", total=self._num_steps, words="")
        self._tasks = [
            self._bars.add_task(job.name, total=job.config.train.num_steps, words="")
            for job in jobs
        ]
        self.refresh()

    def __exit__(self, *error: object) -> None:
        self._refreshed = 0.0
        self.refresh()
        self._bars.close()

    def refresh(self) -> None:
        """Show the current state of the runs, at most once a second."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now

        # The steps that are done or no longer due, and the runs in progress.
        done = 0
        running = []
        for number, job in enumerate(self._jobs):
            has_changed = job.status != self._said[number]
            self._said[number] = job.status
            # A run that has ended writes no more rows.
            if has_changed or job.status not in ENDED:
                self._rows[number] |= newest_values(job.folder)
            step = self._rows[number].get("step", 0)
            done += job.config.train.num_steps if job.status in ENDED else step
            if job.status == "running":
                running.append(f"{job.name} at step {step}")

            row = self._rows[number]
            compiles = job.status == "running" and job.config.train.compile and not row
            words = job.status + describe_row(row) + ", compiling" * bool(compiles)
            self._bars.update(self._tasks[number], completed=step, words=words)
            if self._bars.disable and has_changed:
                log(f"{job.name}: {words}")

        if self._estimate is None:
            self._estimate = Estimate(now, done)
        left = self._estimate.left(now, done, self._num_steps)
        num_ended = sum(job.status in ENDED for job in self._jobs)
        words = f"{num_ended} of {len(self._jobs)} runs ended, {left}"
        self._bars.update(self._sweep, completed=done, words=words)
        self._bars.draw()
        if self._bars.disable and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            log(f"running: {', '.join(running)}; {words}")
