"""metrics.jsonl, a run's curve: one JSON object per line, in step order, no step twice.

The file grows by whole lines, and is on the disk before any checkpoint that follows. A run that
resumes drops the rows past its checkpoint, so that no row is missing or repeated. No torch.
"""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from rope_exp.config.schema import Count
from rope_exp.run.folder import checked
from rope_exp.system.errors import RecordError
from rope_exp.system.files import (
    check_regular,
    explaining_full_disk,
    parse_json,
    readable,
    write_atomically,
)

METRICS = "metrics.jsonl"
NEWEST_BYTES = 4096  # enough for several rows


class Row(TypedDict):
    """The keys that every row must have."""

    step: Count


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl in step order; [] if there are none yet.

    A last line without a newline is ignored: its process is still writing it, or died doing so.

    Raises:
        RecordError: the file cannot be read, a line is no row, or its step does not follow the
            row before. The message names file and line.
    """
    path = folder / METRICS
    check_regular(path)
    with readable(path):
        # A run that starts over removes the old file, perhaps just now.
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []

    rows: list[dict[str, Any]] = []
    step = 0
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        row = checked(where, parse_json(where, line), Row)
        if row["step"] <= step:
            raise RecordError(f"{where}: step {row['step']} does not follow the row before")
        step = row["step"]
        rows.append(row)
    return rows


def newest_values(folder: Path) -> dict[str, Any]:
    """Return the newest value of each column in the last rows; {} if no row can be read."""
    values: dict[str, Any] = {}
    path = folder / METRICS
    # Opening a pipe would wait for a writer.
    if not path.is_file():
        return values
    with suppress(OSError, RecordError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - NEWEST_BYTES, 0))
        # The first line may lack its beginning, and the last its end.
        for line in file.read().split(b"\n")[size > NEWEST_BYTES : -1]:
            values |= checked(METRICS, parse_json(METRICS, line), Row)
    return values


def last_step(folder: Path) -> int:
    """Return the step of the last row; 0 if no row can be read."""
    return int(newest_values(folder).get("step", 0))


class MetricsWriter:
    """Appends rows to a run's metrics.jsonl.

    Attributes:
        last: the last row, {} before the first.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        """Drop the rows past `step`, the step of the checkpoint from which the run resumes.

        Raises:
            RecordError: the file is damaged; it is left as it is.
        """
        rows = [row for row in read_metrics(folder) if row["step"] <= step]
        self.last: dict[str, Any] = rows[-1] if rows else {}
        self._path = folder / METRICS
        write_atomically(self._path, "".join(map(_to_line, rows)))
        self._file = self._path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one whole row; steps increase.

        Raises:
            DiskError: the disk is full; no part of the row remains in the file.
        """
        line = _to_line(row).encode()
        with explaining_full_disk(self._path.parent, len(line), "a row of metrics"):
            written = self._file.write(line)
            if written < len(line):
                self._file.truncate(self._file.tell() - written)
                raise OSError(errno.ENOSPC, "written in part", str(self._path))
        self.last = dict(row)

    def sync(self) -> None:
        """Sync all rows to the disk, before a checkpoint that follows them.

        Raises:
            DiskError: the disk is full; some file systems report it only here.
        """
        with explaining_full_disk(self._path.parent, self._file.tell(), "its metrics"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close."""
        with self._file:
            self.sync()


def _to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
