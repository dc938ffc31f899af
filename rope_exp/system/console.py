"""Progress of a run and of a preparation: a bar on a terminal, plain lines otherwise."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

LINE_SECONDS = 10.0  # between plain lines


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let words that cannot be said end nothing: where standard error is closed, or a file on a full disk."""
    try:
        yield
    except OSError:
        # What is left in its buffer would fail once more when Python ends, and change the exit code.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)


def say(line: str) -> None:
    """Print a line to standard error, if that can be."""
    with unheard():
        sys.stderr.write(
            f"{line}\n"
        )  # at once: print writes the newline apart, and other processes' words between
        sys.stderr.flush()


class Progress:
    """Shows steps done, the loss, the rate and the time left, on standard error."""

    def __init__(self, name: str, num_steps: int, step: int, *, shown: bool) -> None:
        self._name, self._num_steps, self._first = name, num_steps, step
        self._started = self._last_line = time.monotonic()
        self._step, self._lines = step, shown and not sys.stderr.isatty()
        self._bar = tqdm(
            total=num_steps,
            initial=step,
            desc=name,
            unit="step",
            disable=not (shown and sys.stderr.isatty()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def update(self, step: int, loss: float) -> None:
        """A step is done."""
        self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update(step - self._step)
        self._step = step

    def row(self, row: Mapping[str, Any]) -> None:
        """A row was recorded: print it where there is no bar, at the ends, at evaluations and every few seconds."""
        now = time.monotonic()
        due = now - self._last_line >= LINE_SECONDS or "val/loss" in row
        if not self._lines or not due:
            return
        self._last_line = now
        left = (
            (now - self._started)
            / max(row["step"] - self._first, 1)
            * (self._num_steps - row["step"])
        )
        parts = [
            f"{self._name}: step {row['step']}/{self._num_steps}",
            f"loss {row['train/loss']:.4f}",
        ]
        if "val/loss" in row:
            parts.append(f"val {row['val/loss']:.4f}")
        if row["tokens_per_s"]:
            parts.append(f"{row['tokens_per_s']:,.0f} tokens/s")
        say(", ".join([*parts, f"{left:.0f} s left"]))


class PreparationProgress:
    """Shows how much of a corpus has been encoded, on standard error."""

    def __init__(self, text_bytes: int | None, max_tokens: int | None) -> None:
        self._total = text_bytes if max_tokens is None else max_tokens
        self._what = "text_bytes" if max_tokens is None else "tokens"
        self._started = self._last = time.monotonic()
        unit = "B" if max_tokens is None else "token"
        self._bar = tqdm(
            total=self._total,
            desc="data",
            unit=unit,
            unit_scale=True,
            disable=not sys.stderr.isatty(),
        )

    def update(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Show the counts so far."""
        done = (
            sum(counts[self._what].values())
            if self._what == "text_bytes"
            else counts["tokens"]["train"]
        )
        self._bar.update(done - self._bar.n)
        now = time.monotonic()
        if not self._bar.disable or now - self._last < LINE_SECONDS:
            return
        self._last = now
        elapsed, megabytes = now - self._started, sum(counts["text_bytes"].values()) / 1e6
        left = (
            f", {max(0.0, self._total / max(done, 1) - 1) * elapsed:.0f} s left"
            if self._total
            else ""
        )
        say(
            f"data: {sum(counts['documents'].values()):,} documents, {megabytes:,.0f} MB, "
            f"{sum(counts['tokens'].values()):,} tokens, {megabytes / elapsed:.1f} MB/s{left}"
        )

    def close(self) -> None:
        """The last count has been shown."""
        self._bar.close()
