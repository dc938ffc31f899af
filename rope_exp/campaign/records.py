"""Records of a campaign's runs: written once, verified at each reading, packed into one file.

A record is <records>/<campaign>/<cell>.json, or a line of <records>/<campaign>.jsonl.gz, whose
place is called <campaign>.jsonl.gz/<cell>.json. Errors name that place.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rope_exp import files, folder
from rope_exp.errors import ConfigError, RunFolderError, show
from rope_exp.sections import Count, Name

PACKED = ".jsonl.gz"
CELLS = "[!.]*.json"  # a report's listing is hidden, and may lie in the same folder
_Curve = TypedDict(
    "_Curve",
    {"step": list[Count], "train/loss": list[FiniteFloat], "val/loss": list[FiniteFloat | None]},
)


class _Record(TypedDict):
    format: Literal[1]
    campaign: Name
    cell: str
    row: Name
    factors: dict[str, Any]
    config: dict[str, Any]
    env: folder.Env
    result: dict[str, Any]
    curve: _Curve
    probes: dict[str, Any]


def cell_name(row: str, factors: Mapping[str, Any]) -> str:
    """Return a cell's unique name, made of its row, its factors and its seed."""
    return files.path_name(_spelled_cell(row, factors))


def old_cell_name(row: str, factors: Mapping[str, Any]) -> str:
    """Return a cell's name in records that were written before version 0.3.0 shortened long ones.

    It differs from `cell_name` if it is longer than files.LONGEST_NAME.
    """
    return files.path_name(_spelled_cell(row, factors), shortens=False)


def _spelled_cell(row: str, factors: Mapping[str, Any]) -> str:
    # Sorted, because a record keeps no other order.
    parts = [f"{key}={show(value)}" for key, value in sorted(factors.items()) if key != "seed"]
    return "-".join([row, *parts, f"s{show(factors.get('seed'))}"])


def write_record(path: Path, run_dir: Path, row: str, factors: Mapping[str, Any]) -> folder.Run:
    """Write the record of a run that is done, unless there is one.

    Args:
        path: <records>/<campaign>/<cell>.json.
        run_dir: the run's folder.
        row: the cell's row.
        factors: the cell's level of each factor, and its seed.
    Returns:
        The run as the record gives it.
    Raises:
        RunFolderError: the run is not done, its code was not committed, or the record could not be
            read back.
    """
    if path.exists():
        return read_record(path)
    run = folder.read_run(run_dir)
    if not run.result:
        raise RunFolderError(f"{run_dir} holds no result: the run is not done")
    git = run.env.get("git") or {}
    if any(state and state["dirty"] for state in [git, *run.env.get("earlier_git", ())]):
        reason = f"was trained with code that was changed since {git.get('commit')!s:.10}"
        raise RunFolderError(f"{run_dir} {reason}: remove it and commit, and its cell runs again")

    # Without what only describes the run's place, trackers and machine.
    config = run.config.to_dict()
    del config["run"], config["tracker"]
    config["data"]["cache_dir"] = None
    env = {key: run.env[key] for key in run.env.keys() - {"accelerate", "platform", "params"}}
    probes = run_dir / folder.PROBES
    record = {
        "format": 1,
        "campaign": path.parent.name,
        "cell": path.stem,
        "row": row,
        "factors": dict(factors),
        "config": config,
        "env": env,
        "result": run.result,
        "curve": {key: [line.get(key) for line in run.metrics] for key in _Curve.__annotations__},
        "probes": files.read_json(probes) if probes.exists() else {},
    }
    text = canonical({**record, "sha256": digest(record)})
    # A record that cannot be read back is not written; otherwise the cell would count as done.
    recorded = read_record(path, text.encode())
    files.make_folders(path.parent)
    files.write_atomically(path, text)
    return recorded


def stored_records(records: Path, campaign: str) -> dict[Path, bytes]:
    """Return the content of every record of a campaign, by place, in the order of the cells."""
    listed: list[tuple[Path, bytes]] = []
    # Before the pack: a record that another process packs meanwhile is gone here, or read twice.
    for path in (records / campaign).glob(CELLS):
        with files.refuse_unreadable(path), suppress(FileNotFoundError):
            listed.append((path, files.read_bytes(path)))

    packed = records / f"{campaign}{PACKED}"
    lines: list[bytes] = []
    if packed.exists():
        with files.refuse_unreadable(packed, EOFError, zlib.error):
            lines = gzip.decompress(files.read_bytes(packed)).splitlines(keepends=True)
    cells = [files.parse_json(packed, line).get("cell") for line in lines]
    listed += [(packed / f"{cell}.json", line) for cell, line in zip(cells, lines, strict=True)]

    stored: dict[str, tuple[Path, bytes]] = {}
    for path, content in sorted(listed, key=lambda item: item[0].name):
        other, known = stored.setdefault(path.name, (path, content))
        if known != content:
            raise RunFolderError(f"{path} differs from the record of this cell in {other.parent}")
    return dict(stored.values())


def read_records(records: Path, campaign: str) -> list[folder.Run]:
    """Read and verify every record of a campaign, in the order of the cells."""
    return [read_record(*stored) for stored in stored_records(records, campaign).items()]


def recorded_campaigns(records: Path) -> list[str]:
    """Return the names of campaigns with records."""
    # First those that another process may pack meanwhile.
    loose = {path.parent.name for path in records.glob(f"*/{CELLS}")}
    packed = {path.name.removesuffix(PACKED) for path in records.glob(f"*{PACKED}")}
    return sorted(loose | packed)


def read_record(path: Path, content: bytes | None = None) -> folder.Run:
    """Read and verify the record at a place, whose content may be given.

    Returns:
        The run as its folder would give it, with the record's path as its folder.
    Raises:
        RunFolderError: it cannot be read, was changed since it was written, or is of another place.
    """
    values = files.read_json(path) if content is None else files.parse_json(path, content)
    # JSON may hold numbers past a float's range, which are infinite in Python.
    with files.refuse_unreadable(path):
        sha256 = digest(values)
    if values.get("sha256") != sha256:
        raise RunFolderError(
            f"{path} was changed since it was written: its SHA-256 is {sha256:.12}"
        )
    record = folder.checked(path, values, _Record)
    with files.refuse_unreadable(f"{path}'s config", ConfigError):
        config = folder.to_config(record["config"])
    name = cell_name(record["row"], record["factors"])
    if path.stem == old_cell_name(record["row"], record["factors"]):
        name = path.stem
    where = f"{record['campaign']}/{name}"
    place = f"{path.parent.name.removesuffix(PACKED)}/{path.stem}"
    is_placed = where == place and record["cell"] == path.stem
    if not is_placed or record["factors"].get("seed") != config.seed:
        raise RunFolderError(f"{path} is the record of {where}: moved, renamed or edited")
    curve = record["curve"]
    steps = curve["step"]
    if steps != sorted({*steps}) or any(len(column) != len(steps) for column in curve.values()):
        raise RunFolderError(
            f"{path} holds a curve whose steps are out of order, or without a loss"
        )
    metrics = []
    for values_at_step in zip(*curve.values(), strict=True):
        row = dict(zip(curve, values_at_step, strict=True))
        row["tokens"] = config.train.tokens_until(row["step"])
        metrics.append({key: value for key, value in row.items() if value is not None})
    result = folder.check_result(path, record["result"])
    folder.check_probes(path, record["probes"], result, config)
    run = folder.Run(
        folder=path,
        config=config,
        result=result,
        metrics=metrics,
        env=values["env"],
        where=where,
        group=record["campaign"],
        row=record["row"],
        factors=record["factors"],
        probes=folder.with_nan(record["probes"]),
    )
    run.check()
    return run


def canonical(values: Mapping[str, Any]) -> str:
    """Return a record's canonical JSON, which is hashed and stored."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record without its own digest."""
    return files.text_sha256(canonical({key: values[key] for key in values if key != "sha256"}))
