"""metrics.jsonl, a run's curve: one JSON object a line, in step order, no step twice.

The file grows by whole lines. Every checkpoint keeps its length and SHA-256 (a mark), and a run
that goes on cuts the file back to the mark of its checkpoint, so that no row is missing or stands
twice. No torch.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from rope_exp.config.schema import Count, Natural, Sha256, convert
from rope_exp.system.errors import ConfigError, RecordError
from rope_exp.system.files import (
    descriptor_of,
    explaining_full_disk,
    is_at,
    open_regular,
    readable,
    refuse_constant,
    sync_folder,
)

METRICS = "metrics.jsonl"


class Row(TypedDict):
    """Of a row, what is read back everywhere."""

    step: Count


class Mark(TypedDict):
    """What a file of metrics held when a checkpoint was saved."""

    bytes: Natural
    sha256: Sha256


NO_ROWS: Mark = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}


# -- reading -------------------------------------------------------------------------------------


@dataclass
class MetricsTail:
    """Reads the rows of a metrics.jsonl that may still grow, each of them once.

    Attributes:
        restarted: whether the last poll found the file cut back, and so began again with its
            first row.
    """

    _path: Path
    restarted: bool = False
    _last_step: int = 0
    _num_bytes: int = 0
    _num_rows: int = 0

    def poll(self) -> list[dict[str, Any]]:
        """Return the rows that were completed since the last poll; none while there is no file.

        A last line without its newline is a row that is being written, or was when its process
        died. It is left for a later poll.

        Raises:
            RecordError: the file cannot be read, a line is no row, or its step does not follow
                the row before. The message names file and line; the next poll meets it again.
        """
        self.restarted = False
        with readable(self._path), ExitStack() as stack:
            # A run that begins anew removes the old file, perhaps just now.
            try:
                file = stack.enter_context(open_regular(self._path))
            except FileNotFoundError:
                return []
            if os.fstat(file.fileno()).st_size < self._num_bytes:
                self.restarted = True
                self._last_step = 0
                self._num_bytes = 0
                self._num_rows = 0
            file.seek(self._num_bytes)
            lines = file.read().split(b"\n")[:-1]

        rows: list[dict[str, Any]] = []
        step = self._last_step
        for number, line in enumerate(lines, start=self._num_rows + 1):
            where = f"{self._path} line {number}"
            row = _parse(line, where)
            if row["step"] <= step:
                raise RecordError(f"{where}: step {row['step']} does not follow the row before")
            step = row["step"]
            rows.append(row)

        self._last_step = step
        self._num_rows += len(lines)
        self._num_bytes += sum(len(line) + 1 for line in lines)
        return rows


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl in step order; none before the first.

    Raises:
        RecordError: what `MetricsTail.poll` refuses.
    """
    return MetricsTail(folder / METRICS).poll()


def last_step(folder: Path) -> int:
    """Return the step of the last row; 0 before the first, and of a file that cannot be read."""
    rows = []
    with suppress(RecordError):
        rows = read_metrics(folder)
    return int(rows[-1]["step"]) if rows else 0


def read_marked(path: Path, mark: Mark) -> bytes:
    """Return the beginning of a metrics.jsonl that a checkpoint's `mark` vouches for.

    Raises:
        RecordError: it cannot be read, or is not what it was when the checkpoint was saved.
    """
    with readable(path), open_regular(path) as file:
        content = file.read(mark["bytes"])
    if hashlib.sha256(content).hexdigest() != mark["sha256"]:
        raise RecordError(
            f"{path} was changed: its first {mark['bytes']:,} bytes are not those that stood there "
            "when the checkpoint was saved; restore it, or begin anew with run.fresh=true"
        )
    return content


def _parse(line: bytes, where: str) -> dict[str, Any]:
    with readable(where):
        values = json.loads(line.decode(), parse_constant=refuse_constant)
        try:
            convert(Row, values)
        except ConfigError as error:
            raise ValueError(error) from error
    row: dict[str, Any] = values
    return row


# -- writing -------------------------------------------------------------------------------------


class MetricsWriter:
    """Appends rows to a run's metrics.jsonl, and knows the mark of what the file holds.

    Attributes:
        last: the last row, {} before the first.
    """

    def __init__(self, folder: Path, mark: Mark = NO_ROWS) -> None:
        """Cut the file back to the mark of the checkpoint that the run goes on from.

        Args:
            folder: the run's.
            mark: without rows at the beginning of a run, which empties the file.
        Raises:
            RecordError: the file is not what it was at the mark; it is left as it is.
        """
        self.last: dict[str, Any] = {}
        self._path = folder / METRICS
        content = b""
        if mark["bytes"]:
            content = read_marked(self._path, mark)
            self.last = _parse(content.splitlines()[-1], f"{self._path}'s last row")
        self._digest = hashlib.sha256(content)

        # Appending: after a cut, or beside another writer, no row may leave a hole before it.
        descriptor = descriptor_of(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._num_bytes = len(content)
        self._file.truncate(self._num_bytes)
        sync_folder(folder)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, whole; steps increase.

        Raises:
            DiskError: the disk is full; no part of the row stands in the file.
        """
        assert row["step"] > self.last.get("step", 0), (row["step"], self.last)
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        with explaining_full_disk(self._path.parent, len(line), "a row of metrics"):
            written = self._file.write(line)
            if written < len(line):
                self._file.truncate(self._file.tell() - written)
                raise OSError(errno.ENOSPC, "written in part", str(self._path))

        self._digest.update(line)
        self._num_bytes += len(line)
        self.last = dict(row)

    def mark(self) -> Mark:
        """Return the length and SHA-256 of the file, every row of which is on the disk then.

        A checkpoint keeps this mark, and so is never newer than the rows before it.

        Raises:
            DiskError: the disk is full; some file systems find that out only here.
            OSError: the file was moved, replaced or cut, and is not what was written.
        """
        number = self._file.fileno()
        num_bytes = self._num_bytes
        if not (is_at(number, self._path) and os.fstat(number).st_size == num_bytes):
            raise OSError(
                f"{self._path} was moved, replaced or cut while the run wrote it; its last "
                "checkpoint stands"
            )

        with explaining_full_disk(self._path.parent, num_bytes, "its metrics"):
            os.fsync(number)
        return {"bytes": num_bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Sync and close; raises what `mark` does."""
        with self._file:
            self.mark()
