"""The progress of a sweep: bars on a terminal, plain lines otherwise."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress

from rope_exp.errors import RecordError, describe_row, ignoring_output_errors, log, time_left
from rope_exp.files import parse_json, readable
from rope_exp.folder import METRICS, MetricsRow, checked
from rope_exp.ranks import Job

REFRESH_SECONDS = 1.0
NEWEST_BYTES = 4096  # enough for several rows
LINE_SECONDS = 30.0  # between plain lines about all running jobs

# A stopped run has not ended: the same command resumes it.
ENDED = ("finished", "diverged", "failed")


class View(Progress):
    """Displays the runs of a sweep, read from their metrics."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        console = Console(stderr=True)
        # Without a terminal there are no bars, and plain lines are logged.
        super().__init__(
            "{task.description}",
            BarColumn(),
            "{task.fields[words]}",
            console=console,
            auto_refresh=False,
            disable=not (sys.stderr.isatty() and console.is_interactive),
        )
        self._jobs = jobs
        self._num_steps = sum(job.config.train.num_steps for job in jobs)
        self._began: tuple[float, int] | None = None
        self._line_at = time.monotonic() + LINE_SECONDS
        self._show_at = 0.0
        self.start()
        # rich hides the cursor until the bars end, but a second signal exits before that.
        if not self.disable:
            console.show_cursor()

        # First, so that a terminal too short for all bars shows it.
        self._sweep = self.add_task("sweep", total=self._num_steps, words="")
        for job in jobs:
            steps = job.config.train.num_steps
            self.add_task(job.name, total=steps, words="", status="waiting", row={})
        self.show()

    def close(self) -> None:
        """Show the last state of the runs."""
        self._show_at = 0.0
        self.show()
        if not self.disable:
            with ignoring_output_errors():
                self.stop()

    def show(self, *_: object) -> None:
        """Show the current state of the runs, at most once a second."""
        now = time.monotonic()
        if now < self._show_at:
            return
        self._show_at = now + REFRESH_SECONDS

        # The steps that are done or no longer due, and the runs in progress.
        done = 0
        running = []
        for bar, job in zip(self.tasks[1:], self._jobs, strict=True):
            status = job.status
            row = bar.fields["row"] | newest_values(job.folder)
            step = row.get("step", 0)
            done += job.config.train.num_steps if status in ENDED else step
            words = status + describe_row(row)
            if status == "running":
                running.append(f"{job.name} at step {step}")
                words += ", compiling" * (job.config.train.compile and not row)
            if self.disable and status != bar.fields["status"]:
                log(f"{job.name}: {words}")
            self.update(bar.id, completed=step, words=words, status=status, row=row)

        began, first = self._began = self._began or (now, done)
        left = time_left(now - began, done - first, self._num_steps - done)
        num_ended = sum(job.status in ENDED for job in self._jobs)
        words = f"{num_ended} of {len(self._jobs)} runs ended, {left}"
        self.update(self._sweep, completed=done, words=words)
        with ignoring_output_errors():
            self.refresh()
        if self.disable and now >= self._line_at:
            self._line_at = now + LINE_SECONDS
            log(f"running: {', '.join(running)}; {words}")


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
