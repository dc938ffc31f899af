"""One live view of a whole sweep: a table on a terminal, plain lines otherwise."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rope_exp.config import RunConfig
from rope_exp.record import RecordError, read_metrics

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
    """Reads the runs' own metrics; a run that no longer changes is read once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows, self._console = rows, Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._started = self._refreshed = self._last_line = time.monotonic()
        self._metrics: dict[int, list[dict[str, Any]]] = {}
        self._printed: dict[int, str] = {}
        self._read_at: dict[int, str] = {}  # the status at which a run's metrics were last read
        self._steps_before = self._steps_done()

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        self._print_changes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
            self._live.update(self._table(), refresh=True)
            return
        self._print_changes()
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            running = [f"{row.config.name} {self._step(row)}" for row in self._rows if row.status == "running"]
            self._print(f"running: {', '.join(running)}; {self._left()}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def _print_changes(self) -> None:
        for number, row in enumerate(self._rows):
            if self._printed.get(number) == row.status or row.status == "waiting":
                continue
            last = self._last(row)
            loss = f", val/loss {last['val/loss']:.4f}" if row.status == "finished" and "val/loss" in last else ""
            self._printed[number] = row.status
            if not self._live:
                self._print(f"{row.config.name}: {row.status}{loss}")

    def _table(self) -> Table:
        table = Table(caption=self._left())
        for column in ("run", "status", "step", "train loss", "val loss", "tokens/s"):
            table.add_column(column, justify="left" if column in ("run", "status") else "right")
        for row in self._rows:
            last, validated = self._last(row), [m for m in self._read(row) if "val/loss" in m]
            table.add_row(
                row.config.name,
                row.status,
                f"{self._step(row)}/{row.config.train.num_steps}",
                f"{last['train/loss']:.4f}" if last else "",
                f"{validated[-1]['val/loss']:.4f}" if validated else "",
                f"{last['tokens_per_s']:,.0f}" if last and last["tokens_per_s"] else "",
            )
        return table

    def _left(self) -> str:
        total = sum(row.config.train.num_steps for row in self._rows)
        done, elapsed = self._steps_done(), time.monotonic() - self._started
        fresh = done - self._steps_before
        left = f"about {elapsed / fresh * (total - done) / 60:.1f} minutes left" if fresh else "no estimate yet"
        ended = sum(row.status not in ("waiting", "running") for row in self._rows)
        if ended == len(self._rows):
            return f"all {ended} runs ended, after {elapsed / 60:.1f} minutes"
        return f"{ended} of {len(self._rows)} runs ended, {left}"

    def _steps_done(self) -> int:
        return sum(
            self._step(row) if row.status in ("waiting", "running") else row.config.train.num_steps
            for row in self._rows
        )

    def _step(self, row: Row) -> int:
        return int(self._last(row).get("step", 0))

    def _last(self, row: Row) -> dict[str, Any]:
        rows = self._read(row)
        return rows[-1] if rows else {}

    def _read(self, row: Row) -> list[dict[str, Any]]:
        number = next(index for index, other in enumerate(self._rows) if other is row)
        if self._read_at.get(number) != row.status or row.status == "running":
            self._read_at[number] = row.status
            try:
                self._metrics[number] = read_metrics(row.folder)
            except (RecordError, OSError):  # the run itself refuses its broken record, and says so in its log
                self._metrics[number] = []
        return self._metrics[number]
