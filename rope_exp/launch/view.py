"""One view of a whole sweep: a bar for each run on a terminal, plain lines otherwise."""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from rope_exp.launch.job import Job
from rope_exp.run.metrics import METRICS, MetricsTail
from rope_exp.system.console import Bars, describe_row, say, time_left
from rope_exp.system.errors import RecordError

REFRESH_SECONDS = 1.0
LINE_SECONDS = 30.0  # between plain lines about all that runs


class SweepView(contextlib.AbstractContextManager["SweepView"]):
    """Follows the runs' own metrics."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._curves = [_Curve(job) for job in jobs]
        self._num_steps = sum(job.config.train.num_steps for job in jobs)
        self._steps_before = self._steps_done()
        self._started = time.monotonic()
        self._last_line = self._started
        self._refreshed = 0.0

        self._bars = Bars()
        # First, where a terminal that is too low for all of them shows it.
        self._sweep = self._bars.add_task("sweep", total=self._num_steps, words="")
        for job in jobs:
            self._bars.add_task(job.config.name, total=job.config.train.num_steps, words="")
        self.refresh()

    def __exit__(self, *error: object) -> None:
        self._refreshed = 0.0
        self.refresh()
        self._bars.close()

    def refresh(self) -> None:
        """Show how the runs stand now, at most once a second."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        for number, curve in enumerate(self._curves, start=1):
            curve.read()
            words = curve.words()
            self._bars.update(self._bars.task_ids[number], completed=curve.step, words=words)
            if self._bars.disable and curve.job.status != curve.said:
                curve.said = curve.job.status
                say(f"{curve.job.config.name}: {words}")

        done = self._steps_done()
        before = self._steps_before
        left = time_left(now - self._started, done - before, self._num_steps - before)
        num_ended = sum(curve.job.exit_code is not None for curve in self._curves)
        words = f"{num_ended} of {len(self._curves)} runs ended, {left}"
        self._bars.update(self._sweep, completed=done, words=words)
        self._bars.draw()
        if self._bars.disable and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            running = [curve for curve in self._curves if curve.job.status == "running"]
            steps = [f"{curve.job.config.name} {curve.step}" for curve in running]
            say(f"running: {', '.join(steps)}; {words}")

    def _steps_done(self) -> int:
        return sum(curve.steps_done for curve in self._curves)


class _Curve:
    """A run, and what the last rows of its metrics say."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.said = "waiting"  # the status that was printed last
        self._tail = MetricsTail(job.folder / METRICS)
        self._last: dict[str, Any] = {}  # the newest value of each column
        self.read()

    @property
    def step(self) -> int:
        """How far its metrics are."""
        return int(self._last.get("step", 0))

    @property
    def steps_done(self) -> int:
        """The steps that need not be waited for."""
        return self.step if self.job.exit_code is None else self.job.config.train.num_steps

    def words(self) -> str:
        """Return the status and the newest losses."""
        return self.job.status + describe_row(self._last)

    def read(self) -> None:
        """Read the rows that have come since the last time.

        A broken file is left to the run itself, which refuses it and says so in its log.
        """
        rows = []
        with contextlib.suppress(RecordError, OSError):
            rows = self._tail.poll()
        if self._tail.restarted:
            self._last = {}
        for row in rows:
            self._last |= row
