"""The run folder: config.yaml, env.json, metrics.jsonl, result.json. What a run says of itself.

Every file but metrics.jsonl appears whole by an atomic rename. metrics.jsonl grows by whole lines, one a step; on
resume it is cut back to the checkpoint's step, so that no row is missing or stands twice. result.json comes last: its
presence means that the run is done. No torch.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from rope_exp.config import RunConfig
from rope_exp.schema import ConfigError

CONFIG, ENV, METRICS, RESULT = "config.yaml", "env.json", "metrics.jsonl", "result.json"


LOCK_SECONDS = 5.0  # long enough for a process that was just killed to be gone


class RecordError(ValueError):
    """A run folder that cannot be read as one; the message names the file."""


class DiskError(OSError):
    """Too little space; the message names the folder, the bytes needed and the bytes free."""


def check_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to start where `needed_bytes` for `what` are not free.

    Raises:
        DiskError: naming the folder and both numbers.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise DiskError(
            f"no space left in {folder}: {what} needs {needed_bytes:,} bytes and {free:,} are free; "
            f"make {needed_bytes - free:,} bytes of room or choose another folder"
        )


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by a file that holds `text`, whole or not at all, and on the disk when this returns."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a rename is only that once the folder is synced)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold the run folder's lock; it is given back when the process ends, however it ends.

    Raises:
        ConfigError: another process holds it.
    """
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise ConfigError("run.dir", str(folder), "another process is running this run; wait for it") from None
    try:
        yield
    finally:
        lock.release()


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml, the fully resolved config."""
    write_atomically(folder / CONFIG, yaml.safe_dump(config.to_dict(), sort_keys=False))


def read_config(folder: Path) -> RunConfig:
    """Read config.yaml.

    Raises:
        RecordError: it is missing or no YAML mapping. ConfigError: it is not a config of this version.
    """
    try:
        values = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecordError(f"{folder / CONFIG} cannot be read: {_first_line(error)}") from error
    return RunConfig.from_dict(values)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object; NaN and infinity are refused, since JSON has none."""
    write_atomically(path, to_json(values))


def to_json(values: Mapping[str, Any]) -> str:
    """The one way in which JSON objects are spelled here."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RecordError: the file is missing, is no JSON, or holds no object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {_first_line(error)}") from error
    if not isinstance(values, dict):
        raise RecordError(f"{path} holds no JSON object")
    return values


def read_result(folder: Path) -> dict[str, Any] | None:
    """result.json, or None while the run is not done."""
    return read_json(folder / RESULT) if (folder / RESULT).exists() else None


def describe(result: Mapping[str, Any]) -> str:
    """A result in a few words."""
    if result["status"] == "diverged":
        return f"diverged: the loss or a gradient of step {result['diverged_step']} was not finite"
    rate = f", {result['tokens_per_s']:,.0f} tokens/s" if result["tokens_per_s"] else ""
    return f"finished, val/loss {result['val/loss']:.4f}{rate}, {result['wall_s']:.0f} s"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl in step order; [] before the first.

    A last line without its newline is a row that was being written when the process died, and is left out.

    Raises:
        RecordError: a line is no JSON object with a step, or steps do not increase.
    """
    path = folder / METRICS
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            step = row["step"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RecordError(f"{path} line {number} is not a row of metrics") from error
        if type(step) is not int or (rows and step <= rows[-1]["step"]):
            raise RecordError(f"{path} line {number}: step {step!r} does not follow the row before")
        rows.append(row)
    return rows


class MetricsWriter:
    """Appends rows to metrics.jsonl; opening it at step s drops every row after s."""

    def __init__(self, folder: Path, resume_step: int) -> None:
        path = folder / METRICS
        kept = [row for row in read_metrics(folder) if row["step"] <= resume_step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))
        self.last_step = kept[-1]["step"] if kept else 0
        self._file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, whole; steps increase."""
        assert row["step"] > self.last_step, (row["step"], self.last_step)
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        end = self._file.tell()
        if self._file.write(line) != len(line):  # the disk is full: leave no half line behind
            self._file.truncate(end)
            raise OSError(28, "No space left on device", self._file.name)
        self.last_step = row["step"]

    def sync(self) -> None:
        """Put every row so far on the disk (before a checkpoint that they must not be newer than)."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        self._file.close()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
