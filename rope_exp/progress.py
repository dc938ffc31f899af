"""The progress of a long task in lines: of a run, of a corpus, and of the runs of a sweep."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from rope_exp.config import RunConfig
from rope_exp.errors import is_terminal, log, redraw
from rope_exp.folder import last_row, list_steps

LINE_SECONDS = 10.0  # between two lines about one task
REDRAW_SECONDS = 1.0  # between two lines of which the second replaces the first, on a terminal
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
    """The progress of a long task, as a line every few seconds; a terminal redraws one line."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name = name
        self._total = total
        self._last_line = time.monotonic()
        self._last_redraw = self._last_line
        self._began: tuple[float, int] | None = None

    def show(self, done: int, status: str, *, at_once: bool = False) -> None:
        """Log the progress, unless a line was logged a moment ago.

        Args:
            done: how far the task is, in the unit of its total.
            status: the line without the name and the time that is left.
            at_once: log in any case.
        """
        now = time.monotonic()
        # Time counts from the first call, after the first steps, which compile.
        if self._began is None:
            self._began = (now, done)
        began, first = self._began
        is_due = at_once or now - self._last_line >= LINE_SECONDS
        if not is_due and now - self._last_redraw < REDRAW_SECONDS:
            return
        self._last_redraw = now
        if is_due:
            self._last_line = now

        if self._total and done < self._total:
            left = None
            if done > first:
                left = (now - began) / (done - first) * (self._total - done)
            status += f", {spell_left(left)}"
        line = f"{self._name}: {status}"
        if at_once:
            log(line)
        else:
            redraw(line, keep=is_due)


def run_aside(call: Callable[[], Result], status: Callable[[], str]) -> Result:
    """Return the result of a library's long call, which runs in another thread.

    Python handles signals in the main thread, between two steps of its own: here, while it waits.

    Args:
        call: releases Python's lock for most of its time.
        status: returns the text of the line that is logged every few seconds until then.
    """
    began = time.monotonic()
    outcome: Future[Result] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # a panic of a library is not an Exception
            outcome.set_exception(error)

    # A daemon, so that a process that is stopped does not wait for it.
    threading.Thread(target=work, daemon=True).start()
    while not outcome.done():
        wait([outcome], LINE_SECONDS)
        if not outcome.done():
            so_far = timedelta(seconds=round(time.monotonic() - began))
            redraw(f"{status()}, {so_far} so far", keep=True)
    return outcome.result()


class Watched(Protocol):
    """A run, as the progress of a sweep reads it."""

    config: RunConfig

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def status(self) -> str: ...


class Sighting(NamedTuple):
    """The step of a run at a time, by the monotonic clock."""

    time: float
    step: int


@dataclass
class Course:
    """A run as a sweep has seen it."""

    num_steps: int
    # The start of its processes, with the step from which they resume; None: not started.
    start: Sighting | None = None
    # The first look that showed a step trained since then; None: there was none.
    first: Sighting | None = None
    # The newest look that showed a further step; None: there was none.
    newest: Sighting | None = None
    # Its newest training loss, as text after a comma.
    loss: str = ""
    has_ended: bool = False

    def see(self, now: float, step: int) -> None:
        """Note the step of a run whose processes were started."""
        assert self.start is not None
        before = self.newest or self.start
        if step > before.step:
            self.newest = Sighting(now, step)
            self.first = self.first or self.newest


def seconds_left(courses: Sequence[Course], now: float) -> float | None:
    """Return an estimate of the time until all runs have ended; None while nothing was measured.

    A run's time is its start plus its steps. The start is the time that imports and compiling
    take. Both are measured.
    """
    num_steps = 0
    stepping = 0.0
    has_measured_start = False
    for course in courses:
        if course.first is not None and course.newest is not None:
            num_steps += course.newest.step - course.first.step
            stepping += course.newest.time - course.first.time
            # A run that ended before a second look counts as a start alone.
            has_measured_start |= course.has_ended
    if not num_steps and not has_measured_start:
        return None

    pace = stepping / max(num_steps, 1)
    starts = []
    for course in courses:
        if course.start is not None and course.first is not None:
            first_steps = course.first.step - course.start.step
            starts.append(course.first.time - course.start.time - pace * first_steps)
    start = statistics.fmean(starts)

    remaining = []
    num_running = 0
    for course in courses:
        if course.has_ended:
            continue
        num_running += course.start is not None
        last = course.newest or course.start or Sighting(now, 0)
        seconds = pace * (course.num_steps - last.step)
        if course.newest is None:
            seconds += start - (now - last.time)
        remaining.append(max(seconds, 0.0))
    # All places stay busy, or the longest run decides.
    return max(sum(remaining) / num_running, *remaining)


class SweepProgress:
    """Logs the progress of the runs of a sweep, read from their metrics."""

    def __init__(self, runs: Sequence[Watched]) -> None:
        self._runs = runs
        self._courses = [Course(run.config.train.num_steps) for run in runs]
        self._statuses = ["waiting"] * len(runs)
        self._line_at = 0.0
        # The last summary, without its estimate.
        self._news = f"0 of {len(runs)} runs ended; "
        self.show()

    def show(self, *_: object) -> None:
        """Log what has changed; metrics are read only if a line is due or a status has changed.

        A run's change stays on a terminal, where the summary is redrawn.
        """
        now = time.monotonic()
        before = self._statuses
        self._statuses = [run.status for run in self._runs]
        is_due = now >= self._line_at
        if self._statuses == before and not is_due:
            return
        if is_due:
            self._line_at = now + (REDRAW_SECONDS if is_terminal() else LINE_SECONDS)

        for number, run in enumerate(self._runs):
            self._look(run, self._courses[number], before[number], now)
        self._summarize(now, is_due=is_due)

    def _look(self, run: Watched, course: Course, before: str, now: float) -> None:
        """Read how far a run is, and log its status if that is another than before."""
        status = run.status
        row = last_row(run.folder)
        step = row.get("step", 0)
        if status != before:
            log(f"{run.name}: {_change(run, status, row)}")
            if status == "running":
                course.start = Sighting(now, step)
                course.first = None
                course.newest = None
        if course.start is not None:
            course.see(now, step)
        course.loss = describe_row({"train/loss": row.get("train/loss")})
        # A stopped run has not ended: the same command resumes it.
        course.has_ended = status in ("finished", "diverged", "failed")

    def _summarize(self, now: float, *, is_due: bool) -> None:
        """Log how many runs have ended and how far the others are, unless nothing has moved."""
        num_ended = sum(course.has_ended for course in self._courses)
        summary = f"{num_ended} of {len(self._runs)} runs ended"
        running = []
        for run, course, status in zip(self._runs, self._courses, self._statuses, strict=True):
            if status == "running":
                running.append(f"{run.name} {_phase(run, course)}")

        news = f"{summary}; {', '.join(running)}"
        is_last = num_ended == len(self._runs)
        if news == self._news or not (is_due or is_last):
            return
        self._news = news
        if not running:
            log(f"sweep: {summary}")
            return
        left = spell_left(seconds_left(self._courses, now))
        redraw(f"sweep: {summary}, {left}; running: {', '.join(running)}", keep=True)


def _phase(run: Watched, course: Course) -> str:
    """Return what a running run does, as text after its name."""
    if course.newest is not None:
        return f"at step {course.newest.step}{course.loss}"
    if run.config.train.compile is True:
        return "starting and compiling"
    return "starting"


def _change(run: Watched, status: str, row: Mapping[str, Any]) -> str:
    """Return a run's new status as text."""
    if status == "stopped":
        steps = list_steps(run.folder / "checkpoints")
        return f"stopped, with a checkpoint of step {steps[-1]}" if steps else "stopped at step 0"
    return f"{status}, step {row.get('step', 0)}{describe_row(row)}"
