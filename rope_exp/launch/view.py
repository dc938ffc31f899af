"""One live view of a whole sweep: a table on a terminal, plain lines otherwise."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import check
from rope_exp.run.metrics import METRICS, parse_row
from rope_exp.system.console import unheard
from rope_exp.system.errors import ConfigError, RecordError
from rope_exp.system.files import open_regular

REFRESH_SECONDS, LINE_SECONDS = 1.0, 30.0


class Row(Protocol):
    """What the table reads of a run."""

    @property
    def config(self) -> RunConfig:
        """Its config."""

    @property
    def folder(self) -> Path:
        """Its folder."""

    @property
    def status(self) -> str:
        """Waiting, running, finished, ..."""


class LiveTable:
    """Follows the runs' own metrics."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows, self._console = rows, Console(stderr=True)
        self._live = (
            Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        )
        self._started = self._refreshed = self._last_line = time.monotonic()
        self._curves = {id(row): _Curve(row.folder) for row in rows}
        self._printed: dict[int, str] = {}
        self._steps_before = self._steps_done()

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        self._print_changes()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._refreshed = 0.0
        self.refresh()
        if self._live:
            self._live.__exit__(kind, error, trace)

    def refresh(self) -> None:
        """Show the state of now, at most once a second."""
        now = time.monotonic()
        if now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        if self._live:
            with unheard():
                self._live.update(self._table(), refresh=True)
            return
        self._print_changes()
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            running = [
                f"{row.config.name} {self._step(row)}"
                for row in self._rows
                if row.status == "running"
            ]
            self._print(f"running: {', '.join(running)}; {self._left()}")

    def _print(self, line: str) -> None:
        with unheard():
            self._console.print(line, highlight=False, soft_wrap=True)

    def _print_changes(self) -> None:
        for number, row in enumerate(self._rows):
            if self._printed.get(number) == row.status or row.status == "waiting":
                continue
            last = self._last(row)
            loss = (
                f", val/loss {last['val/loss']:.4f}"
                if row.status == "finished" and "val/loss" in last
                else ""
            )
            self._printed[number] = row.status
            if not self._live:
                self._print(f"{row.config.name}: {row.status}{loss}")

    def _table(self) -> Table:
        table = Table(caption=self._left())
        for column in ("run", "status", "step", "train loss", "val loss", "tokens/s"):
            table.add_column(column, justify="left" if column in ("run", "status") else "right")
        for row in self._rows:
            curve = self._curves[id(row)]
            last, validated = curve.last(), curve.validated
            table.add_row(
                row.config.name,
                row.status,
                f"{self._step(row)}/{row.config.train.num_steps}",
                f"{last['train/loss']:.4f}" if last else "",
                f"{validated['val/loss']:.4f}" if validated else "",
                f"{last['tokens_per_s']:,.0f}" if last and last["tokens_per_s"] else "",
            )
        return table

    def _left(self) -> str:
        total = sum(row.config.train.num_steps for row in self._rows)
        done, elapsed = self._steps_done(), time.monotonic() - self._started
        fresh = done - self._steps_before
        left = (
            f"about {elapsed / fresh * (total - done) / 60:.1f} minutes left"
            if fresh
            else "no estimate yet"
        )
        ended = sum(row.status not in ("waiting", "elsewhere", "running") for row in self._rows)
        if ended == len(self._rows):
            return f"all {ended} runs ended, after {elapsed / 60:.1f} minutes"
        return f"{ended} of {len(self._rows)} runs ended, {left}"

    def _steps_done(self) -> int:
        return sum(
            self._step(row)
            if row.status in ("waiting", "elsewhere", "running")
            else row.config.train.num_steps
            for row in self._rows
        )

    def _step(self, row: Row) -> int:
        return int(self._last(row).get("step", 0))

    def _last(self, row: Row) -> dict[str, Any]:
        return self._curves[id(row)].last()


class _Curve:
    """The last row of a run's metrics and the last with a validation loss; each byte is read once, no row is kept."""

    def __init__(self, folder: Path) -> None:
        self._path, self._read = folder / METRICS, 0
        self._last: dict[str, Any] = {}
        self.validated: dict[str, Any] = {}

    def last(self) -> dict[str, Any]:
        """The last whole row of now; {} before the first."""
        try:
            with open_regular(self._path) as file:
                if file.seek(0, 2) < self._read:  # cut back: the run went on from a checkpoint
                    self._read, self._last, self.validated = 0, {}, {}
                file.seek(self._read)
                lines = file.read().rpartition(b"\n")[0].splitlines(keepends=True)
            self._read += sum(map(len, lines)) + bool(lines)
            for line in lines[-1:]:
                self._last = _checked(line)
            for line in [line for line in lines if b'"val/loss"' in line][-1:]:
                self.validated = _checked(line)
        except (
            RecordError,
            ConfigError,
            OSError,
        ):  # not there yet; or broken, which the run itself refuses and says in its log
            pass
        return self._last


def _checked(line: bytes) -> dict[str, Any]:
    row = parse_row(line, "the last row")
    check(
        row,
        {"train/loss": float, "tokens_per_s": float | None}
        | ({"val/loss": float} if "val/loss" in row else {}),
    )
    return row
