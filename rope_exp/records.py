"""Reading and verification of run folders: each must be the complete record of one run.

A `ReportError` is one sentence that names the folder. No torch.
"""

import fnmatch
import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import FiniteFloat
from typing_extensions import TypedDict

from rope_exp.campaign.cells import Cell, cell_name
from rope_exp.campaign.file import Test
from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError, RecordError, show
from rope_exp.files import (
    check_regular,
    make_folders,
    parse_json,
    read_json,
    readable,
    write_atomically,
)
from rope_exp.folder import (
    CONFIG,
    ENV,
    METRICS,
    PROBES,
    RESULT,
    Env,
    check_probes,
    check_result,
    checked,
    read_config,
    read_env,
    read_metrics,
    read_probes,
    read_result,
)
from rope_exp.identity import Count, Name, Sha256

Status = Literal["finished", "diverged", "unfinished"]


# Types of the values that are read here, in addition to those of rope_exp/folder.py.
_RunRow = TypedDict("_RunRow", {"train/loss": FiniteFloat, "val/loss": FiniteFloat})


# Values of result.json that repeat config.yaml, and the last row of metrics.jsonl.
_FROM_CONFIG = {
    "pe": "pe.label",
    "rotate": "pe.rotate",
    "seed": "seed",
    "group_sha256": "group_sha256",
    "config_sha256": "config_sha256",
}
_LAST_ROW = {"train/loss": "train/loss_last"}
_LAST_ROW_OF_FINISHED = _LAST_ROW | {"step": "steps", "tokens": "tokens", "val/loss": "val/loss"}


class ReportError(RecordError):
    """Records that contradict themselves or one another; the message names the folders."""


def perplexity(loss: float) -> float:
    """Return e to a loss in nats per token."""
    # Past this a float overflows.
    return math.exp(loss) if loss < 709 else math.inf


def bits_per_byte(loss: float, config: RunConfig, env: Mapping[str, Any]) -> float | None:
    """Return a loss in nats per token as bits per byte of text, by the whole held-out side.

    None if the run does not predict text token after token, or does not record both counts.
    """
    corpus = env.get("corpus", {})
    sizes = [corpus.get(key, {}).get("validation") for key in ("tokens", "text_bytes")]
    if None in sizes or not config.causal:
        return None
    num_tokens, num_bytes = sizes
    bits: float = loss * num_tokens / num_bytes / math.log(2)
    return bits


@dataclass(frozen=True)
class Run:
    """One run, with the content of its folder or its record.

    Attributes:
        folder: <runs>/<group>/<pe>/seed<k>, or the file that is its record.
        result: {} while the run is not done.
        where: <group>/<pe>/seed<k>, or <campaign>/<cell>, so that tables do not depend on the
            location of the runs.
        group: the group of its folder, or the campaign of its record.
        row: the row of its campaign's cell; else empty, like its factors.
        probes: its model's answers, by probe; NaN replaces a number that is not finite.
        test: its campaign's way of judging differences; None: as in docs/protocol.md.
    """

    folder: Path
    config: RunConfig
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    env: dict[str, Any]
    where: str
    group: str
    row: str = ""
    factors: dict[str, Any] = field(default_factory=dict)
    probes: dict[str, Any] = field(default_factory=dict)
    test: Test | None = None

    @property
    def status(self) -> Status:
        """The status in result.json; unfinished while there is none."""
        return self.result["status"] if self.result else "unfinished"

    @property
    def loss(self) -> float | None:
        """A finished run's validation loss, in its data's unit."""
        return self.result.get("val/loss")

    @property
    def variant_name(self) -> str:
        """The name for people: VO-RoPE, or QK-RoPE base500000 if a key departs from the variant."""
        pe = self.config.pe
        return f"{pe.name} {pe.label.partition('-')[2]}".rstrip()

    @property
    def epochs(self) -> float | None:
        """The planned passes over the corpus; None if env.json does not give its size."""
        sizes = self.env.get("corpus", {}).get("tokens")
        return self.config.train.num_tokens / sizes["train"] if sizes else None


def find_groups(runs: Path, pattern: str | None, *, several: bool = False) -> list[Path]:
    """Find the folders of groups by name.

    Args:
        runs: the folder of groups.
        pattern: a group's name, with * for anything; None: any.
        several: whether more than one may match.
    Raises:
        ReportError: there is none, none of this name, or more than one to choose from.
    """
    groups = [
        group.name
        for group in folders_in(runs)
        if any(is_run(folder) for pe in folders_in(group) for folder in folders_in(pe))
    ]
    if not groups:
        raise ReportError(
            f"{runs} holds no runs (<group>/<pe>/seed<k>); `rope-exp train +experiment=nine` "
            "trains the nine, and a run with a custom run.dir must be moved to such a folder"
        )

    found = fnmatch.filter(groups, pattern or "*")
    if not found or (len(found) > 1 and not several):
        named = f"groups {pattern}" if pattern else "groups"
        raise ReportError(
            f"{runs} holds {len(found) or 'no'} {named}, but a table takes one (or several, with "
            "--factors and the keys that differ, such as pe optim.lr). Available for --group: "
            f"{', '.join(found or groups)}"
        )
    return [runs / name for name in found]


def read_runs(groups: Iterable[Path]) -> tuple[list[Run], dict[str, str]]:
    """Read every run of some groups.

    Returns:
        The runs; and the folders that were left out, with the reason: they hold no run, or one that
        cannot be read.
    Raises:
        ReportError: a folder's files do not agree with one another.
        RecordError: no run can be read.
    """
    runs = []
    left_out = {}
    unreadable = []
    for group in groups:
        for pe in folders_in(group):
            for folder in folders_in(pe) or [pe]:
                name = str(folder.relative_to(group.parent))
                if folder == pe or not is_run(folder):
                    left_out[name] = "it holds no run <pe>/seed<k>"
                    continue
                try:
                    runs.append(_placed(read_run(folder)))
                except ReportError:
                    # Edited or moved: without it, the table would hide that.
                    raise
                except RecordError as error:
                    left_out[name] = str(error)
                    unreadable.append(error)
    if unreadable and not runs:
        raise unreadable[0]
    return runs, left_out


def folders_in(parent: Path) -> list[Path]:
    """Return folders by name, except hidden ones: run.fresh moves a run to `.seed0.old-1`."""
    inside = sorted(parent.iterdir()) if parent.is_dir() else []
    return [path for path in inside if path.is_dir() and not path.name.startswith(".")]


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, complete or damaged."""
    return any((folder / name).exists() for name in (CONFIG, METRICS, RESULT))


def read_run(folder: Path) -> Run:
    """Read one run's folder, wherever it lies.

    Raises:
        ReportError: its files do not agree with one another.
        RecordError: a file cannot be read.
    """
    parts = folder.absolute().parts
    result = read_result(folder) or {}
    run = Run(
        folder,
        read_config(folder),
        result,
        read_metrics(folder),
        read_env(folder),
        where="/".join(parts[-3:]),
        group=parts[-3],
        probes=with_nan(read_probes(folder, result)),
    )
    for row in run.metrics:
        # A row without an evaluation is checked as if it had one.
        checked(folder / f"{METRICS} step {row['step']}", {"val/loss": 0.0} | row, _RunRow)

    if run.result:
        check_identity(run)
        check_end(run)
    return run


def with_nan(answers: Any) -> Any:
    """Return a probe's answers with NaN for null, which marks a loss that is not finite."""
    if isinstance(answers, dict):
        return {key: with_nan(value) for key, value in answers.items()}
    if isinstance(answers, list):
        return [with_nan(value) for value in answers]
    return math.nan if answers is None else answers


# -- refusals --------------------------------------------------------------------------------------


def _placed(run: Run) -> Run:
    """Return a run, but refuse one in a folder that is named after another."""
    expected = f"{run.config.pe.label}/seed{run.config.seed}"
    if not run.folder.match(expected):
        raise ReportError(
            f"{run.folder} holds a run that belongs in {expected}: moved, or its config edited"
        )
    return run


def check_identity(run: Run) -> None:
    """Check that the result belongs to this config, and that the run started from its weights."""
    began = run.env.get("init_from", {}).get("weights_sha256")
    if began != run.config.init_weights:
        raise ReportError(
            f"{_file(run, ENV)} says that the run started from the weights {began!s:.12}, but by "
            f"its config it started from {run.config.init_weights!s:.12}"
        )
    for key, name in _FROM_CONFIG.items():
        value = attrgetter(name)(run.config)
        if run.result[key] != value:
            raise ReportError(
                f"{_file(run, RESULT)} says {key}={run.result[key]!r}, but by its config it "
                f"is {value!r}: one of them was edited, or belongs to another run"
            )


def check_end(run: Run) -> None:
    """Check that the curve ends as result.json says that the run did."""
    path = _file(run, METRICS)
    last = [{}, *run.metrics][-1]
    same = _LAST_ROW_OF_FINISHED if run.status == "finished" else _LAST_ROW
    for key, name in same.items():
        if last.get(key) != run.result[name]:
            raise ReportError(
                f"{path} ends with {key}={last.get(key)!r}, but by {RESULT} the run ended with "
                f"{run.result[name]!r}: rows are missing, or one of them was edited"
            )
    if last.get("step", 0) > run.result["steps"]:
        raise ReportError(
            f"{path} continues to step {last['step']}, past the {run.result['steps']} of {RESULT}"
        )


def _file(run: Run, name: str) -> Path:
    """Return the file with a fact of a run: one in its folder, or its record."""
    return run.folder / name if run.folder.is_dir() else run.folder


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
