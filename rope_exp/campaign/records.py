"""Records of a campaign's runs: written once, verified at each reading, packed into one file.

A record is <records>/<campaign>/<cell>.json, or a line of <records>/<campaign>.jsonl.gz, whose
place is called <campaign>.jsonl.gz/<cell>.json. Errors name that place.
"""

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rope_exp import files
from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError, show
from rope_exp.folder import (
    PROBES,
    Env,
    ReportError,
    Run,
    Test,
    check_probes,
    check_result,
    checked,
    read_run,
    to_config,
    with_nan,
)
from rope_exp.sections import Count, Name

PACKED = ".jsonl.gz"
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
    env: Env
    result: dict[str, Any]
    curve: _Curve
    probes: dict[str, Any]
    test: NotRequired[Test]


def cell_name(row: str, factors: Mapping[str, Any]) -> str:
    """Return a cell's unique name, made of its row, its factors and its seed."""
    # Sorted, because a record keeps no other order.
    parts = [f"{key}={show(value)}" for key, value in sorted(factors.items()) if key != "seed"]
    name = "-".join([row, *parts, f"s{show(factors.get('seed'))}"])
    return re.sub(r"[^\w.+=,-]", "_", name)


def write_record(
    path: Path, folder: Path, row: str, factors: Mapping[str, Any], test: Test | None = None
) -> None:
    """Write the record of a finished run's folder, all of whose code is in a commit; once."""
    if path.exists():
        return
    run = read_run(folder)
    if not run.result:
        raise ReportError(f"{folder} holds no result: the run is not done")
    git = run.env.get("git") or {}
    if any(state and state["dirty"] for state in [git, *run.env.get("earlier_git", ())]):
        raise ReportError(
            f"{folder} was trained with code that was changed since {git.get('commit')!s:.10}: "
            "remove it and commit, and the campaign reruns this cell"
        )

    # Without what only describes the run's place, trackers and machine.
    config = run.config.to_dict()
    del config["run"], config["tracker"]
    config["data"]["cache_dir"] = None
    env = {key: run.env[key] for key in run.env.keys() - {"accelerate", "platform", "params"}}
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
        "probes": files.read_json(folder / PROBES) if (folder / PROBES).exists() else {},
        **({"test": test} if test else {}),
    }
    text = canonical({**record, "sha256": digest(record)})
    # A record that cannot be read back is not written; otherwise the cell would count as done.
    read_record(path, text.encode())
    files.make_folders(path.parent)
    # Another process may have written it meanwhile.
    if not path.exists():
        files.write_atomically(path, text)


def stored_records(records: Path, campaign: str) -> dict[Path, bytes]:
    """Return the content of every record of a campaign, by place, in the order of the cells."""
    packed = records / f"{campaign}{PACKED}"
    stored: dict[str, tuple[Path, bytes]] = {}
    content = b""
    if packed.exists():
        with files.readable(packed, EOFError, zlib.error):
            content = gzip.decompress(packed.read_bytes())
    for line in content.splitlines(keepends=True):
        cell = files.parse_json(packed, line).get("cell")
        if f"{cell}.json" in stored:
            raise ReportError(f"{packed} has two records of {cell}")
        stored[f"{cell}.json"] = packed / f"{cell}.json", line

    for path in (records / campaign).glob("*.json"):
        with files.readable(path):
            content = path.read_bytes()
        if path.name in stored and stored[path.name][1] != content:
            raise ReportError(f"{path} differs from the record of this cell in {packed}")
        stored[path.name] = path, content
    return dict(stored[name] for name in sorted(stored))


def read_records(records: Path, campaign: str) -> list[Run]:
    """Read and verify every record of a campaign, in the order of the cells."""
    return [read_record(*stored) for stored in stored_records(records, campaign).items()]


def recorded_campaigns(records: Path) -> list[str]:
    """Return the names of campaigns with records."""
    packed = {path.name.removesuffix(PACKED) for path in records.glob(f"*{PACKED}")}
    return sorted(packed | {path.parent.name for path in records.glob("*/*.json")})


def read_record(path: Path, content: bytes | None = None) -> Run:
    """Read and verify the record at a place, whose content may be given; else RecordError."""
    values = files.read_json(path) if content is None else files.parse_json(path, content)
    # JSON may hold numbers past a float's range, which Python reads as infinity.
    with files.readable(path):
        sha256 = digest(values)
    if values.get("sha256") != sha256:
        raise ReportError(f"{path} was changed since it was written: its SHA-256 is {sha256:.12}")
    record = checked(path, values, _Record)
    where = f"{record['campaign']}/{record['cell']}"
    if where != f"{path.parent.name.removesuffix(PACKED)}/{path.stem}":
        raise ReportError(f"{path} is the record of {where}: moved or renamed")

    try:
        config = to_config(record["config"])
    except ConfigError as error:
        raise ReportError(f"{path} holds no config of this version: {error}") from error
    result = check_result(path, record["result"])
    check_probes(path, record["probes"], result)
    run = Run(
        folder=path,
        config=config,
        result=result,
        metrics=_rows(path, record["curve"], config),
        env=values["env"],
        where=where,
        group=record["campaign"],
        row=record["row"],
        factors=record["factors"],
        probes=with_nan(record["probes"]),
        test=record.get("test"),
    )
    run.check()
    if record["cell"] != cell_name(run.row, run.factors) or run.factors.get("seed") != config.seed:
        cell = f"row {run.row} and factors {show(run.factors)}"
        raise ReportError(f"{path} states {cell}, which do not match its cell or its config")
    asked = config.train.probes if run.status == "finished" else ()
    if run.probes.keys() != {*asked}:
        probes = show(sorted(run.probes))
        raise ReportError(f"{path} holds probes {probes}; its config asks for {show([*asked])}")
    return run


def _rows(path: Path, curve: Mapping[str, Any], config: RunConfig) -> list[dict[str, Any]]:
    """Return a curve's rows as in metrics.jsonl."""
    steps = curve["step"]
    if steps != sorted({*steps}) or any(len(column) != len(steps) for column in curve.values()):
        raise ReportError(f"{path} holds a curve whose steps are out of order, or without a loss")
    rows = []
    for values in zip(*curve.values(), strict=True):
        row = {key: value for key, value in zip(curve, values, strict=True) if value is not None}
        rows.append({**row, "tokens": config.train.tokens_until(row["step"])})
    return rows


def canonical(values: Mapping[str, Any]) -> str:
    """Return a record's canonical JSON, which is hashed and stored."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record without its own digest."""
    return files.text_sha256(canonical({key: values[key] for key in values if key != "sha256"}))
