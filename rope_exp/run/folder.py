"""The run folder: config.yaml, env.json, metrics.jsonl, result.json. What a run says of itself.

Every file but metrics.jsonl appears whole by an atomic rename. metrics.jsonl grows by whole lines, one a step; on
resume it is cut back to what it was at the checkpoint, so that no row is missing or stands twice. result.json comes
last: its presence means that the run is done. What is read back is checked, type by type: a folder that was damaged or
edited is refused by the file's name. No torch.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import Count, Natural, NonNegative, OrderSha256, Seed, Sha256, check
from rope_exp.system.errors import ConfigError, RecordError, first_line
from rope_exp.system.files import (
    disk_full,
    is_full,
    open_regular,
    read_json,
    read_text,
    refuse_constant,
    sync_folder,
    write_atomically,
)

CONFIG, ENV, METRICS, RESULT = "config.yaml", "env.json", "metrics.jsonl", "result.json"
LOCK = ".lock"
LAST_BYTES = 1 << 16  # of metrics.jsonl: more than two rows

# result.json, as DESIGN, section 4, has it.
RESULT_FIELDS: dict[str, Any] = {
    "status": Literal["finished", "diverged"],
    "pe": str,
    "rotate": tuple[str, ...],
    "seed": Seed,
    "params": Count,
    "tokens": Natural,
    "steps": Natural,
    "val/loss": float | None,
    "train/loss_last": float | None,
    "init_sha256": Sha256,
    "data_sha256": Sha256,
    "order_sha256": OrderSha256,
    "config_sha256": Sha256,
    "group_sha256": Sha256,
    "tokens_per_s": NonNegative | None,
    "mfu": NonNegative | None,
    "wall_s": NonNegative,
}
# Of a row of metrics.jsonl, what is read back.
ROW_FIELDS: dict[str, Any] = {"step": Count}
# What MetricsWriter.mark gives.
MARK_FIELDS: dict[str, Any] = {"bytes": Natural, "sha256": Sha256}
# Of env.json, what is read back.
ENV_FIELDS: dict[str, Any] = {"marks": tuple[str, ...], "started": tuple[str, ...]}


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml, the fully resolved config."""
    write_atomically(folder / CONFIG, yaml.safe_dump(config.to_dict(), sort_keys=False))


def read_config(folder: Path) -> RunConfig:
    """Read config.yaml.

    Raises:
        RecordError: it is missing, or is not a config as this version writes it.
    """
    path = folder / CONFIG
    try:
        text = read_text(path)
        # We write none; and a few hundred bytes of aliases to aliases would unfold to more than a machine holds.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise RecordError(f"{path} cannot be read: it holds aliases")
        return RunConfig.from_dict(yaml.safe_load(text))
    except ConfigError as error:
        raise RecordError(f"{path} is no config of this version: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path} cannot be read: {first_line(error)}") from error


def check_fields(path: Path, values: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Refuse what `path` holds unless each of `fields` is there and of its type; others are left alone.

    Raises:
        RecordError: naming the file, the field, its value and what is allowed.
    """
    try:
        check(values, fields)
    except ConfigError as error:
        raise RecordError(f"{path} was damaged or edited: {error}") from error


def read_result(folder: Path) -> dict[str, Any] | None:
    """result.json, or None while the run is not done.

    Raises:
        RecordError: it is not what a run of this version writes.
    """
    path = folder / RESULT
    if not os.path.lexists(path):
        return None
    result = read_json(path)
    finished, diverged = {"val/loss": float}, {"val/loss": type(None), "diverged_step": Count}
    ended: dict[str, Any] = finished if result.get("status") == "finished" else diverged
    check_fields(path, result, RESULT_FIELDS | ended)
    return result


def read_env(folder: Path) -> dict[str, Any]:
    """env.json, or {} before the run's first start.

    Raises:
        RecordError: it is not what a run of this version writes.
    """
    path = folder / ENV
    if not os.path.lexists(path):
        return {}
    env = read_json(path)
    check_fields(path, env, ENV_FIELDS)
    return env


def describe(result: Mapping[str, Any]) -> str:
    """A result in a few words."""
    if result["status"] == "diverged":
        return f"diverged: after {result['steps']} steps a loss or a gradient was not finite"
    rate = f", {result['tokens_per_s']:,.0f} tokens/s" if result["tokens_per_s"] else ""
    return f"finished, val/loss {result['val/loss']:.4f}{rate}, {result['wall_s']:.0f} s"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl in step order; [] before the first.

    A last line without its newline is a row that was being written when the process died, and is left out.

    Raises:
        RecordError: a line is no JSON object with a step, or steps do not increase.
    """
    path = folder / METRICS
    if not os.path.lexists(path):
        return []
    rows: list[dict[str, Any]] = []
    lines = read_text(path).split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        row = parse_row(line, f"{path} line {number}")
        if rows and row["step"] <= rows[-1]["step"]:
            raise RecordError(
                f"{path} line {number}: step {row['step']!r} does not follow the row before"
            )
        rows.append(row)
    return rows


def last_step(folder: Path) -> int:
    """The step of the last whole row of metrics.jsonl; 0 before the first, and of a file that cannot be read."""
    try:
        with open_regular(folder / METRICS) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return int(parse_row(line, "the last row")["step"])
    except (OSError, RecordError):
        return 0


def parse_row(line: str | bytes, where: str) -> dict[str, Any]:
    """One line of metrics.jsonl.

    Raises:
        RecordError: it is no JSON object with a step; the message begins with `where`.
    """
    try:
        row = json.loads(line, parse_constant=refuse_constant)
        check(row, ROW_FIELDS)
    except (ConfigError, ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"{where} is not a row of metrics: {first_line(error)}") from error
    return dict(row)


class MetricsWriter:
    """Appends rows to metrics.jsonl, and knows what it holds: its length and SHA-256, as checkpoints keep them."""

    def __init__(self, folder: Path, mark: Mapping[str, Any] | None) -> None:
        """Cut the file back to `mark`, what `mark()` gave at the checkpoint; to nothing if None, at a run's beginning.

        Raises:
            RecordError: what it holds up to there is not what it held then; it is left as it is.
        """
        self._path = folder / METRICS
        end, self._digest = 0, hashlib.sha256()
        self.last: dict[str, Any] = {}
        if mark is not None:
            held = self._read(mark)
            end, self._digest = len(held), hashlib.sha256(held)
            if held:
                self.last = parse_row(held.splitlines()[-1], f"{self._path}'s last row")
        self._file = os.fdopen(
            os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=0
        )
        self._file.truncate(end)
        self._file.seek(end)
        sync_folder(folder)

    def _read(self, mark: Mapping[str, Any]) -> bytes:
        try:
            with open_regular(self._path) as file:
                held = file.read(mark["bytes"])
        except OSError as error:
            raise RecordError(f"{self._path} cannot be read: {first_line(error)}") from error
        if hashlib.sha256(held).hexdigest() != mark["sha256"]:
            raise RecordError(
                f"{self._path} was changed: its first {mark['bytes']:,} bytes are not those that stood there when the "
                "checkpoint was saved; restore it, or begin anew with run.fresh=true"
            )
        return held

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, whole; steps increase.

        Raises:
            DiskError: the disk is full; no part of the row stands in the file.
        """
        assert row["step"] > self.last.get("step", 0), (row["step"], self.last)
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        end = self._file.tell()
        try:
            whole = self._file.write(line) == len(line)
        except OSError as error:
            if not is_full(error):
                raise
            whole = False
        if not whole:
            self._file.truncate(end)
            raise disk_full(self._path.parent, len(line), "a row of metrics")
        self._digest.update(line)
        self.last = dict(row)

    def mark(self) -> dict[str, Any]:
        """What the file holds now, for `__init__`; every row is on the disk (no checkpoint may be newer than they).

        Raises:
            DiskError: the disk is full; some file systems find that out only here.
            OSError: the file was moved, replaced or cut meanwhile, and does not hold what was written.
        """
        here = os.fstat(self._file.fileno())
        there = self._path.stat() if self._path.exists() else None
        if there is None or not os.path.samestat(here, there) or here.st_size != self._file.tell():
            raise OSError(
                f"{self._path} was moved, replaced or cut while the run wrote it; its last checkpoint stands"
            )
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if is_full(error):
                raise disk_full(self._path.parent, self._file.tell(), "its metrics") from None
            raise
        return {"bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Sync and close; raises what `mark` does."""
        with self._file:
            self.mark()
