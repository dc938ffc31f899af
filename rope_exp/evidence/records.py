"""Records: what is kept of each finished run of a campaign, enough to rebuild every table.

A record holds the run's config, environment, result, curve and probes, as canonical JSON (sorted
keys, no spaces), and the SHA-256 of that without the digest itself. A record that does not verify,
or contradicts itself, is refused by name.

A campaign in progress has a file for each cell, <records>/<campaign>/<cell>.json, so that several
machines can add to it. `pack` puts them into one, <records>/<campaign>.jsonl.gz: a record per line.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import Count, Name, Sha256
from rope_exp.evidence.runs import (
    ReportError,
    Run,
    check_end,
    check_identity,
    read_run,
    with_nan,
)
from rope_exp.plan.campaign import Cell, cell_name
from rope_exp.plan.campaign_file import Test
from rope_exp.run.folder import PROBES, Env, check_probes, check_result, checked
from rope_exp.system.errors import ConfigError, show
from rope_exp.system.files import (
    check_regular,
    make_folders,
    parse_json,
    read_json,
    readable,
    write_atomically,
)

DEFAULT_RECORDS = Path("results/records")
FORMAT = 1
PACKED = ".jsonl.gz"

# Left out of a record: these keys only describe a run's place and trackers, not its numbers.
_NOT_OF_CONFIG = ("run", "tracker")
_NOT_OF_ENV = ("accelerate", "platform", "params")
_CURVE = ("step", "train/loss", "val/loss")


class _Record(TypedDict):
    format: int
    campaign: Name
    cell: str
    row: Name
    factors: dict[str, Any]
    config: dict[str, Any]
    env: Env
    result: dict[str, Any]
    curve: dict[str, Any]
    probes: dict[str, Any]
    sha256: Sha256
    test: NotRequired[Test]


_Row = TypedDict("_Row", {"step": Count, "train/loss": FiniteFloat, "val/loss": FiniteFloat | None})


def record_path(records: Path, campaign: str, cell: str) -> Path:
    """Return the path of a cell's record."""
    return records / campaign / f"{cell}.json"


def write_record(path: Path, campaign: str, cell: Cell, folder: Path) -> None:
    """Write a cell's record from its run's folder, unless the record exists.

    Raises:
        ReportError: the folder is no complete record of one run, the run is not done, or its code
            was changed since its commit. An installed package has no commit, and is accepted.
        RecordError: a file of the folder cannot be read.
        OSError: the record cannot be written.
    """
    run = read_run(folder)
    if not run.result:
        raise ReportError(f"{folder} holds no result: the run is not done")
    _check_commit(run)

    config = run.config.to_dict()
    # This path is valid on one machine only.
    config["data"]["cache_dir"] = None
    curve = {key: [row.get(key) for row in run.metrics] for key in _CURVE}
    probes = read_json(folder / PROBES) if (folder / PROBES).exists() else {}
    record = {
        "format": FORMAT,
        "campaign": campaign,
        "cell": cell.name,
        "row": cell.row,
        "factors": dict(cell.factors),
        "config": {key: config[key] for key in config if key not in _NOT_OF_CONFIG},
        "env": {key: run.env[key] for key in run.env if key not in _NOT_OF_ENV},
        "result": run.result,
        "curve": curve,
        "probes": probes,
    }
    if cell.test is not None:
        record["test"] = cell.test
    text = canonical({**record, "sha256": digest(record)})
    # A record that cannot be read back is not written; otherwise the cell would count as done.
    _read(path, json.loads(text))
    make_folders(path.parent)
    write_atomically(path, text, replace=False)


def pack(records: Path, campaign: str) -> Path:
    """Put all records of a campaign into one file, and remove those that it had for each cell.

    Returns:
        The path of the one file.
    Raises:
        RecordError: a record cannot be read, or does not verify; nothing is changed.
        OSError: the file cannot be written.
    """
    stored = stored_records(records, campaign)
    for path, content in stored.items():
        read_record(path, content)
    packed = records / f"{campaign}{PACKED}"
    # Without a time, the same records give the same bytes.
    write_atomically(packed, gzip.compress(b"".join(stored.values()), mtime=0))
    for path in (records / campaign).glob("*.json"):
        path.unlink()
    with suppress(OSError):
        (records / campaign).rmdir()
    return packed


def stored_records(records: Path, campaign: str) -> dict[Path, bytes]:
    """Return the content of every record of a campaign, by place, in the order of the cells.

    The place of a record in a packed file is <records>/<campaign>.jsonl.gz/<cell>.json.

    Raises:
        RecordError: a file cannot be read, or two records are of one cell.
    """
    packed = records / f"{campaign}{PACKED}"
    found: dict[str, tuple[Path, bytes]] = {}
    if packed.exists():
        with readable(packed, EOFError, zlib.error):
            lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            name = f"{parse_json(f'{packed}, line {number},', line).get('cell')}.json"
            if name in found:
                raise ReportError(f"{packed} has two records of {name.removesuffix('.json')}")
            found[name] = packed / name, line

    for path in (records / campaign).glob("*.json"):
        check_regular(path)
        with readable(path):
            content = path.read_bytes()
        if path.name in found and found[path.name][1] != content:
            raise ReportError(f"{path} differs from the record of this cell in {packed}")
        found[path.name] = path, content
    return dict(found[name] for name in sorted(found))


def read_record(path: Path, content: bytes | None = None) -> Run:
    """Read and verify one record.

    Args:
        path: its place; see `stored_records`.
        content: None: that of the file.
    Raises:
        ReportError: naming the file: it was changed since it was written, or contradicts itself.
        RecordError: it cannot be read.
    """
    return _read(path, read_json(path) if content is None else parse_json(path, content))


def _read(path: Path, values: Mapping[str, Any]) -> Run:
    """Return the run that a file's values record."""
    record = _verified(path, values)
    try:
        config = RunConfig.from_dict(record["config"])
    except ConfigError as error:
        raise ReportError(f"{path} holds no config of this version: {error}") from error

    result = check_result(path, record["result"])
    check_probes(path, record["probes"], result)
    run = Run(
        folder=path,
        config=config,
        result=result,
        metrics=_rows(path, record["curve"], config),
        env=record["env"],
        where=f"{record['campaign']}/{record['cell']}",
        group=record["campaign"],
        row=record["row"],
        factors=record["factors"],
        probes=with_nan(record["probes"]),
        test=record.get("test"),
    )
    check_identity(run)
    check_end(run)
    _check_cell(run, record["cell"])
    return run


def _verified(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's values, after checks of its digest, format and place."""
    check_digest(path, values)
    if values.get("format") != FORMAT:
        raise ReportError(f"{path} has format {values.get('format')}, but this code reads {FORMAT}")
    record = checked(path, values, _Record)
    campaign = path.parent.name.removesuffix(PACKED)
    if record["cell"] != path.stem or record["campaign"] != campaign:
        raise ReportError(
            f"{path} is the record of {record['campaign']}/{record['cell']}: moved or renamed"
        )
    return record


def check_digest(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse the values of `path` if they do not match their own digest.

    Raises:
        ReportError: they were changed since they were written.
        RecordError: they hold a number that is not finite, which our JSON never does.
    """
    stated = values.get("sha256")
    # JSON may hold numbers past a float's range, which Python reads as infinity.
    with readable(path):
        found = digest(values)
    if stated != found:
        raise ReportError(
            f"{path} was changed since it was written: its content has the SHA-256 {found:.12}, "
            f"but it states {stated!s:.12}"
        )


def read_records(records: Path, campaign: str) -> list[Run]:
    """Read every record of a campaign, by name.

    Raises:
        RecordError: one of them cannot be read, or (as a ReportError) does not verify.
    """
    stored = stored_records(records, campaign)
    return [read_record(path, content) for path, content in stored.items()]


def recorded_campaigns(records: Path) -> list[str]:
    """Return the names of campaigns with records."""
    packed = {path.name.removesuffix(PACKED) for path in records.glob(f"*{PACKED}")}
    return sorted(packed | {path.parent.name for path in records.glob("*/*.json")})


def read_all_below(folder: Path) -> list[Run]:
    """Read every record at or below a folder, which may be that of one campaign's records.

    Raises:
        RecordError: one of them cannot be read, or (as a ReportError) does not verify.
    """
    below = [folder, *(path for path in sorted(folder.rglob("*")) if path.is_dir())]
    campaigns = [(place, name) for place in below for name in recorded_campaigns(place)]
    # The folder may be of one campaign, packed or not.
    if folder.name in recorded_campaigns(folder.parent):
        campaigns.append((folder.parent, folder.name))
    return [run for place, name in campaigns for run in read_records(place, name)]


def canonical(values: Mapping[str, Any]) -> str:
    """Return a record's canonical JSON, which is hashed and stored."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record without its own digest."""
    content = canonical({key: values[key] for key in values if key != "sha256"})
    return hashlib.sha256(content.encode()).hexdigest()


def _rows(path: Path, curve: Mapping[str, Any], config: RunConfig) -> list[dict[str, Any]]:
    """Return a curve's rows as in metrics.jsonl."""
    columns = [curve.get(key) for key in _CURVE]
    if not all(isinstance(column, list) for column in columns):
        raise ReportError(f"{path} holds no curve: {', '.join(_CURVE)} must be lists")
    try:
        rows = [dict(zip(_CURVE, values, strict=True)) for values in zip(*columns, strict=True)]
    except ValueError:
        raise ReportError(f"{path} holds a curve whose columns differ in length") from None

    last_step = 0
    for row in rows:
        checked(path, row, _Row)
        if row["step"] <= last_step:
            raise ReportError(f"{path} holds a curve in which step {row['step']} is out of order")
        last_step = row["step"]
        row["tokens"] = config.train.tokens_until(last_step)
        if row["val/loss"] is None:
            del row["val/loss"]
    return rows


def _check_commit(run: Run) -> None:
    """Refuse a run if any of its starts used code that its commit does not contain."""
    git = run.env.get("git") or {}
    states = [git, *run.env.get("earlier_git", ())]
    # Version 0.2.0 recorded the code of earlier starts only in the words of its marks.
    marks = [mark for mark in run.env.get("marks", ()) if mark.startswith("went on with git ")]
    if any(state and state["dirty"] for state in states) or any("+" in mark for mark in marks):
        raise ReportError(
            f"{run.folder} was trained with code that was changed since {git.get('commit')!s:.10}: "
            "remove it and commit, and the campaign reruns this cell"
        )


def _check_cell(run: Run, cell: str) -> None:
    """Refuse a record if its run does not match its cell's name, or its probes its config."""
    if cell != cell_name(run.row, run.factors) or run.factors.get("seed") != run.config.seed:
        raise ReportError(
            f"{run.folder} states the row {run.row} and the factors {show(run.factors)}, "
            f"which do not match {cell}, or not its config"
        )

    asked = run.config.train.probes if run.status == "finished" else ()
    if set(run.probes) != set(asked):
        raise ReportError(
            f"{run.folder} holds the probes {show(sorted(run.probes))}, but its config asks for "
            f"{show(sorted(asked))}"
        )
