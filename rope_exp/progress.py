"""The progress of a long task in lines: of a run, of a corpus, and of the runs of a sweep."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rope_exp.config import RunConfig
from rope_exp.errors import log
from rope_exp.folder import last_row, list_steps

LINE_SECONDS = 10.0  # between two lines about one task
Result = TypeVar("Result")


def describe_row(row: Mapping[str, Any]) -> str:
    """Return the losses and the speed of a row of metrics, each after a comma."""
    formats = {
        "train/loss": ", loss {:.4f}",
        "val/loss": ", val/loss {:.4f}",
        "tokens_per_s": ", {:,.0f} tokens/s",
    }
    shown = [key for key in formats if isinstance(row.get(key), int | float)]
    return "".join(formats[key].format(row[key]) for key in shown)


def spell_left(seconds: float | None) -> str:
    """Return the time that is left as text."""
    return "no estimate yet" if seconds is None else f"{timedelta(seconds=round(seconds))} left"


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
            if self._total and done < self._total:
                left = None
                if done > first:
                    left = (now - began) / (done - first) * (self._total - done)
                words += f", {spell_left(left)}"
            log(f"{self._name}: {words}")


def run_aside(call: Callable[[], Result], words: Callable[[], str]) -> Result:
    """Return the result of a library's long call, which runs in another thread.

    Python handles signals in the main thread, between two steps of its own: here, while it waits.

    Args:
        call: releases Python's lock for most of its time.
        words: returns what a line says every few seconds until the call is done.
    """
    began = time.monotonic()
    outcome: Future[Result] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # a panic of a library is no Exception
            outcome.set_exception(error)

    # A daemon, so that a process that is stopped does not wait for it.
    threading.Thread(target=work, daemon=True).start()
    while not outcome.done():
        wait([outcome], LINE_SECONDS)
        if not outcome.done():
            so_far = timedelta(seconds=round(time.monotonic() - began))
            log(f"{words()}, {so_far} so far")
    return outcome.result()


class Watched(Protocol):
    """What the progress of a sweep reads of each run."""

    config: RunConfig

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def status(self) -> str: ...


@dataclass
class Course:
    """A run as a sweep has seen it.

    `seen` has up to three pairs of time and step: when its processes started, when a further step
    was first seen, and the newest.
    """

    num_steps: int
    seen: list[tuple[float, int]] = field(default_factory=list)
    has_ended: bool = False


def seconds_left(courses: Sequence[Course], now: float) -> float | None:
    """Estimate the time until all runs have ended; None while nothing was measured.

    A run takes its start, such as imports and compiling, and its steps. Both are measured.
    """
    stepped = [course for course in courses if len(course.seen) > 1]
    num_steps = sum(course.seen[-1][1] - course.seen[1][1] for course in stepped)
    # A run that ended before a second look counts as a start alone.
    if not num_steps and not any(course.has_ended for course in stepped):
        return None

    pace = sum(course.seen[-1][0] - course.seen[1][0] for course in stepped) / max(num_steps, 1)
    starts = []
    for course in stepped:
        (began, begun_step), (first, first_step) = course.seen[:2]
        starts.append(first - began - pace * (first_step - begun_step))
    start = statistics.fmean(starts)

    left = []
    num_running = 0
    for course in courses:
        if course.has_ended:
            continue
        num_running += bool(course.seen)
        at, step = course.seen[-1] if course.seen else (now, 0)
        seconds = pace * (course.num_steps - step)
        if len(course.seen) < 2:
            seconds += start - (now - at)
        left.append(max(seconds, 0.0))
    return max(sum(left) / num_running, *left)


class SweepProgress:
    """Logs the progress of the runs of a sweep, read from their metrics."""

    def __init__(self, jobs: Sequence[Watched]) -> None:
        self._jobs = jobs
        self._courses = [Course(job.config.train.num_steps) for job in jobs]
        self._statuses = ["waiting"] * len(jobs)
        self._line_at = 0.0
        self._words = f"0 of {len(jobs)} runs ended"
        self.show()

    def show(self, *_: object) -> None:
        """Log what has changed; metrics are read only if a line is due."""
        now = time.monotonic()
        before = self._statuses
        self._statuses = [job.status for job in self._jobs]
        is_due = now >= self._line_at
        if self._statuses == before and not is_due:
            return
        if is_due:
            self._line_at = now + LINE_SECONDS

        running = []
        each = zip(self._jobs, self._courses, self._statuses, before, strict=True)
        for job, course, status, old in each:
            row = last_row(job.folder)
            step = row.get("step", 0)
            if status != old:
                log(f"{job.name}: {_change(job, status, row)}")
                if status == "running":
                    course.seen = [(now, step)]
            if course.seen and step > course.seen[-1][1]:
                course.seen = [*course.seen[:2], (now, step)]
            # A stopped run has not ended: the same command resumes it.
            course.has_ended = status in ("finished", "diverged", "failed")
            if status == "running":
                phase = "starting and compiling" if job.config.train.compile is True else "starting"
                if len(course.seen) > 1:
                    phase = f"at step {course.seen[-1][1]}"
                running.append(f"{job.name} {phase}")

        num_ended = sum(course.has_ended for course in self._courses)
        words = f"{num_ended} of {len(before)} runs ended"
        # Nothing is said again while nothing has moved.
        is_last = num_ended == len(before)
        if running:
            words += f"; running: {', '.join(running)}"
        if words == self._words or not (is_due or is_last):
            return
        self._words = words
        if running:
            words += f", {spell_left(seconds_left(self._courses, now))}"
        log(f"sweep: {words}")


def _change(job: Watched, status: str, row: Mapping[str, Any]) -> str:
    """Return a run's new status as words."""
    if status == "stopped":
        steps = list_steps(job.folder / "checkpoints")
        return f"stopped, with a checkpoint of step {steps[-1]}" if steps else "stopped at step 0"
    return f"{status}, step {row.get('step', 0)}{describe_row(row)}"
