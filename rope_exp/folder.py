"""A run as its folder records it: config, environment, metrics, answers to probes, and result.

result.json is written last: its presence means that the run is done. Reading checks the type of
each value, and that files agree; an error names the file. Checkpoints have a module of their own.
"""

import errno
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Protocol, cast

import yaml
from pydantic import Field, FiniteFloat
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError, RunFolderError, show
from rope_exp.files import (
    json_sha256,
    parse_json,
    read_bytes,
    read_json,
    refuse_full_disk,
    refuse_unreadable,
    write_atomically,
)
from rope_exp.identity import choice_names, convert, import_choice
from rope_exp.sections import Count, Natural, NonNegative, OrderSha256, Sha256

CONFIG = "config.yaml"
ENV = "env.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
PROBES = "probes.json"
LOCK = ".lock"
LOG = "log.txt"
# In the folder of a checkpoint.
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"

# The first key of config.yaml. Raise it only if defaults of new keys cannot read old files.
FORMAT = 2
DEEPEST = 100  # levels of nesting in a config.yaml; ours have four
# Keys of older files, by section, that changed no number and are gone.
_GONE = {
    "tracker": ("entity", "tags", "notes", "run_name"),
    "launch": ("inline",),
    "run": ("fresh",),
}

# Best first; `Row.status` relies on it.
Status = Literal["finished", "diverged", "unfinished"]

MetricsRow = TypedDict(
    "MetricsRow", {"step": Count, "train/loss": FiniteFloat, "val/loss": NotRequired[FiniteFloat]}
)
_SHOWN = ("step", "train/loss", "val/loss")
_Losses = TypedDict(
    "_Losses", {"val/loss": FiniteFloat | None, "train/loss_last": FiniteFloat | None}
)
_FinishedLoss = TypedDict("_FinishedLoss", {"val/loss": FiniteFloat})
_DivergedLoss = TypedDict("_DivergedLoss", {"val/loss": None, "diverged_step": Count})
_LOSS = {"finished": _FinishedLoss, "diverged": _DivergedLoss}


class Result(_Losses):
    """The content of result.json. Losses are in RunConfig.unit, times in seconds."""

    status: Literal["finished", "diverged"]
    pe: str
    rotate: tuple[str, ...]
    seed: Natural
    params: Count
    tokens: Natural
    steps: Natural
    init_sha256: Sha256
    # SHA-256 of the initial LLaMA parameters, which every variant has. Older runs have only
    # `init_sha256`.
    shared_init_sha256: NotRequired[Sha256]
    data_sha256: Sha256
    order_sha256: OrderSha256
    config_sha256: Sha256
    group_sha256: Sha256
    # SHA-256 of probes.json; missing for a run without probes, and for older runs.
    probes_sha256: NotRequired[Sha256]
    tokens_per_s: NonNegative | None
    mfu: NonNegative | None
    wall_s: Annotated[float, Field(ge=0, le=1e8)]  # so that a campaign's sum is a valid time


class _Sizes(TypedDict):
    train: Count
    validation: NotRequired[Count]


class _Git(TypedDict):
    commit: str | None
    dirty: bool


class _Corpus(TypedDict):
    # Generated data have no end.
    tokens: NotRequired[_Sizes]
    text_bytes: NotRequired[_Sizes]


class Env(TypedDict):
    """The keys of env.json that are read back: changes upon resuming, start times, and hardware."""

    marks: list[str]
    started: list[str]
    device: NotRequired[str]
    cpu: NotRequired[str]
    torch: NotRequired[str]
    num_threads: NotRequired[Count]
    world_size: NotRequired[Count]
    versions: NotRequired[dict[str, str]]
    corpus: NotRequired[_Corpus]
    git: NotRequired[_Git | None]
    # The code of earlier starts, where it was other code; missing in files of version 0.2.0.
    earlier_git: NotRequired[list[_Git | None]]


class _File(TypedDict):
    sha256: Sha256


Manifest = TypedDict(
    "Manifest", {"model.safetensors": _File, "optimizer.safetensors": _File, "state.json": _File}
)


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml, with every default."""
    values = {"format": FORMAT, **config.to_dict()}
    write_atomically(folder / CONFIG, yaml.safe_dump(values, sort_keys=False))


def read_config(folder: Path) -> RunConfig:
    """Read config.yaml, also that of an older version."""
    path = folder / CONFIG
    with refuse_unreadable(path, yaml.YAMLError):
        values = _parse_yaml(read_bytes(path).decode())

    if isinstance(values, dict) and values.pop("format", 1) != FORMAT:
        raise RunFolderError(
            f"{path} is of another format than this version's; move the folder away to begin anew"
        )
    try:
        return to_config(values)
    except ConfigError as error:
        raise RunFolderError(f"{path} is not a config of this version: {error}") from error


def _parse_yaml(text: str) -> Any:
    """Return the content of a config.yaml.

    The C parser is eight times as fast, and parsing dominates a report on many runs. It recurses,
    so deep nesting could crash it, and aliases could expand without bound; both are refused.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has an alias")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")
    return yaml.load(text, loader)


def to_config(values: Any) -> RunConfig:
    """Convert a stored config: newer keys get their defaults, and keys that went are dropped."""
    if isinstance(values, dict):
        for section, gone in _GONE.items():
            stored = values.get(section)
            if isinstance(stored, dict):
                kept = {key: stored[key] for key in stored if key not in gone}
                values = {**values, section: kept}
    return RunConfig.from_dict(values)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read result.json, a `Result`; None while the run is not done."""
    path = folder / RESULT
    if not path.exists():
        return None
    return check_result(path, read_json(path))


def read_env(folder: Path) -> dict[str, Any]:
    """Read env.json: an `Env`, and keys that it does not declare; {} before the first start."""
    path = folder / ENV
    if not path.exists():
        return {}
    env = read_json(path)
    # The conversion would drop keys of the corpus that `Env` does not declare.
    checked(path, env, Env)
    return env


class AnswerLeaf(Protocol):
    """A file of probes/, as a reader of its answer meets it."""

    @property
    def ANSWER(self) -> Any: ...


def answer_leaf(name: str) -> AnswerLeaf:
    """Return the file of probes/ that gave an answer."""
    leaf = import_choice("probes", name, "train.probes", members=["ANSWER"])
    return cast("AnswerLeaf", leaf)


def check_probes(
    path: Path, answers: Mapping[str, Any], result: Mapping[str, Any], config: RunConfig
) -> None:
    """Refuse answers that no such run has.

    Args:
        path: the file that holds them, for the error.
        answers: by probe. Those to a probe whose file was deleted are taken as they are.
        result: of the run, with the SHA-256 of the answers if it has one.
        config: of the run, which names the probes.

    Raises:
        RunFolderError: the answers have another digest, belong to a probe that train.probes does
            not name, or are not of the type that the probe's file declares.
    """
    # JSON may hold numbers past a float's range, which Python reads as infinity.
    with refuse_unreadable(path):
        sha256 = json_sha256(answers)
    if sha256 != result.get("probes_sha256", sha256):
        raise RunFolderError(f"{path}: the answers do not match probes_sha256 in the run's result")
    for name, answer in answers.items():
        if name not in config.train.probes:
            raise RunFolderError(f"{path} answers {show(name)}, which train.probes does not name")
        if name in choice_names("probes"):
            checked_as(f"{path}: {name}", answer, answer_leaf(name).ANSWER)


def step_folder(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step` below a run's `checkpoints/`."""
    return checkpoints / f"step_{step:08d}"


def list_steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints of a run, oldest first, verified or not."""
    folders = checkpoints.glob(f"step_{'[0-9]' * 8}")
    return sorted(int(path.name.removeprefix("step_")) for path in folders)


def checked(path: object, values: Mapping[str, Any], hint: Any) -> dict[str, Any]:
    """Return a JSON object whose declared keys have their declared types.

    Args:
        path: names the file in the error.
        values: the file's content.
        hint: a TypedDict. Keys that it does not declare stay as they are.
    Raises:
        RunFolderError: a key is missing, or of another type.
    """
    converted: dict[str, Any] = checked_as(path, values, hint)
    return {**values, **converted}


def checked_as(path: object, values: Any, hint: Any) -> Any:
    """Return plain values as the type `hint`; arguments and errors as of `checked`.

    Here `hint` is any type, and a TypedDict loses the keys that it does not declare.
    """
    try:
        return convert(hint, values)
    except ConfigError as error:
        raise RunFolderError(f"{path} was damaged or edited: {error}") from error


def check_result(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as a `Result`, with the losses that its status requires.

    `path` names the file, or the record, in errors.
    """
    result = checked(path, values, Result)
    return checked(path, result, _LOSS[result["status"]])


def describe(result: Mapping[str, Any]) -> str:
    """Return a short description of a result."""
    if result["status"] == "diverged":
        return f"diverged: after {result['steps']} steps a loss or a gradient was not finite"
    rate = f", {result['tokens_per_s']:,.0f} tokens/s" if result["tokens_per_s"] else ""
    return f"finished, val/loss {result['val/loss']:.4f}{rate}, {result['wall_s']:.0f} s"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics.jsonl in step order; [] if there are none yet.

    A last line without a newline is ignored: its process is still writing it, or died doing so.
    """
    path = folder / METRICS
    with refuse_unreadable(path):
        # A run that starts over removes the old file, perhaps just now.
        try:
            lines = read_bytes(path).split(b"\n")[:-1]
        except FileNotFoundError:
            return []

    rows: list[dict[str, Any]] = []
    step = 0
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        row = checked(where, parse_json(where, line), MetricsRow)
        if row["step"] <= step:
            raise RunFolderError(f"{where}: step {row['step']} does not follow the row before")
        step = row["step"]
        rows.append(row)
    return rows


def last_row(folder: Path) -> dict[str, Any]:
    """Return the last whole row of a run's metrics that can be read; {} if there is none."""
    path = folder / METRICS
    lines: list[bytes] = []
    # Opening a pipe would wait for a writer; a run that starts over removes the old file.
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:
            # These are several rows, and the first may lack its beginning.
            file.seek(max(path.stat().st_size - 4096, 0))
            lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        with suppress(RunFolderError):
            return checked(path, parse_json(path, line), MetricsRow)
    return {}


def last_step(folder: Path) -> int:
    """Return the step of the last row that can be read; 0 if there is none."""
    return int(last_row(folder).get("step", 0))


class MetricsWriter:
    """Appends rows to a run's metrics.jsonl; `last` is the last row, {} before the first."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        """Drop the rows past `step`, the step of the checkpoint from which the run resumes."""
        rows = [row for row in read_metrics(folder) if row["step"] <= step]
        self.last: dict[str, Any] = rows[-1] if rows else {}
        self._path = folder / METRICS
        write_atomically(self._path, "".join(map(_to_line, rows)))
        with refuse_full_disk(folder, None, "its metrics"):
            self._file = self._path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; if the disk is full, no part of it remains in the file."""
        line = _to_line(row).encode()
        with refuse_full_disk(self._path.parent, len(line), "a row of metrics"):
            written = self._file.write(line)
            if written < len(line):
                self._file.truncate(self._file.tell() - written)
                raise OSError(errno.ENOSPC, "written in part", str(self._path))
        self.last = dict(row)

    def sync(self) -> None:
        """Sync all rows to the disk; some file systems report only here that it is full.

        Raises:
            OSError: the run's folder was deleted or moved; saving would create a new folder.
        """
        is_in_place = False
        with suppress(FileNotFoundError, NotADirectoryError):
            is_in_place = os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        if not is_in_place:
            raise OSError(f"{self._path} was deleted or moved while the run wrote to it")
        with refuse_full_disk(self._path.parent, self._file.tell(), "its metrics"):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close."""
        with self._file:
            self.sync()


def _to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


class ReportError(RunFolderError):
    """A report cannot be made: records contradict, or do not match what was asked.

    The message names the folders.
    """


@dataclass(frozen=True)
class Run:
    """One run, with the content of its folder or its record."""

    folder: Path  # <runs>/<group>/<pe>/seed<k>, or the file that is its record
    config: RunConfig
    result: dict[str, Any]  # empty while the run is not done
    metrics: list[dict[str, Any]]
    env: dict[str, Any]
    where: str  # <group>/<pe>/seed<k>, or <campaign>/<cell>: the same wherever the runs lie
    group: str  # the group of its folder, or the campaign of its record
    # The row and the factors of its campaign's cell.
    row: str = ""
    factors: dict[str, Any] = field(default_factory=dict)
    # Its model's answers; NaN replaces a number that is not finite.
    probes: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """The status in result.json; unfinished while there is none."""
        return self.result.get("status", "unfinished")

    @property
    def loss(self) -> float | None:
        """A finished run's validation loss, in its data's unit."""
        return self.result.get("val/loss")

    @property
    def variant_name(self) -> str:
        """The name for people: VO-RoPE, or QK-RoPE base500000 if a key departs from the variant."""
        pe = self.config.pe
        return f"{pe.name} {pe.label.partition('-')[2]}".rstrip()

    def check(self) -> None:
        """Refuse a result that disagrees with the config, or with the curve.

        A curve ends at the last step of a finished run, with its loss.
        """
        last = self.metrics[-1] if self.metrics else {}
        self._check_result(CONFIG, self._by_config())
        if self.status == "finished":
            by_curve = {"val/loss": last.get("val/loss"), "steps": last.get("step")}
            self._check_result(METRICS, by_curve)
        if last.get("step", 0) > self.result["steps"]:
            raise ReportError(
                f"{self.folder}: {METRICS} goes on to step {last['step']}, past the "
                f"{self.result['steps']} steps of {RESULT}"
            )

    def _check_result(self, source: str, expected: Mapping[str, Any]) -> None:
        """Refuse a result that differs from the values that another file implies."""
        for key, value in expected.items():
            if self.result[key] != value:
                raise ReportError(
                    f"{self.folder}: {key} is {self.result[key]!r} by {RESULT}, but {value!r} "
                    f"by {source}: one of them was edited, or belongs to another run"
                )

    def _by_config(self) -> dict[str, Any]:
        """Return the values of the result that the config determines."""
        config = self.config
        expected = {
            "config_sha256": config.config_sha256,
            "group_sha256": config.group_sha256,
            "pe": config.pe.label,
            "rotate": config.pe.rotate,
            "seed": config.seed,
            "tokens": config.train.tokens_until(self.result["steps"]),
        }
        if self.status == "finished":
            expected["steps"] = config.train.num_steps
        return expected


def read_runs(groups: Iterable[Path]) -> tuple[list[Run], dict[str, str]]:
    """Return every run of some groups, and the folders that were left out, with the reason.

    Raises:
        ReportError: a run was edited or moved; a table without it would hide that.
        RunFolderError: no run can be read.
    """
    folders = []
    for group in groups:
        # Hidden folders hold runs that were set aside.
        folders += sorted(group.glob("[!.]*/[!.]*"))

    runs = []
    left_out = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        name = "/".join(folder.parts[-3:])
        if not is_run(folder):
            left_out[name] = "it holds no run <pe>/seed<k>, or one that has not begun"
            continue
        try:
            run = read_run(folder)
        except ReportError:
            raise
        except RunFolderError as error:
            left_out[name] = str(error)
            continue
        expected = f"{run.config.pe.label}/seed{run.config.seed}"
        if not folder.match(expected):
            raise ReportError(
                f"{folder} holds a run that belongs in {expected}: moved, or its config edited"
            )
        # A report prints no other key of a row, and rows take most of the memory.
        shown = [{key: row[key] for key in _SHOWN if key in row} for row in run.metrics]
        runs.append(replace(run, metrics=shown))
    if not runs:
        why = "; ".join(left_out.values()) or "there is no folder <pe>/seed<k>"
        raise RunFolderError(f"no run can be read: {why}")
    return runs, left_out


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, complete or damaged."""
    return any((folder / name).exists() for name in (CONFIG, METRICS, RESULT))


def read_run(folder: Path) -> Run:
    """Read one run's folder, wherever it lies; its files must agree with one another."""
    place = folder.absolute()
    config = read_config(folder)
    result = read_result(folder) or {}
    answers: dict[str, Any] = {}
    if "probes_sha256" in result:
        answers = read_json(folder / PROBES)
        check_probes(folder / PROBES, answers, result, config)
    run = Run(
        folder,
        config,
        result,
        read_metrics(folder),
        read_env(folder),
        where="/".join(place.parts[-3:]),
        group=place.parent.parent.name,
        probes=with_nan(answers),
    )
    if run.result:
        run.check()
    return run


def with_nan(answers: Any) -> Any:
    """Return a probe's answers with NaN for null, which marks a loss that is not finite."""
    if isinstance(answers, dict):
        return {key: with_nan(value) for key, value in answers.items()}
    if isinstance(answers, list):
        return [with_nan(value) for value in answers]
    return math.nan if answers is None else answers
