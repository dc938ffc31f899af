"""Results as pandas frames: runs, curves, answers to probes, and tables that `report` wrote."""

from collections.abc import Mapping
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rope_exp.comparable import Row
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.costs import kept
from rope_exp.folder import Result
from rope_exp.identity import choices, chosen
from rope_exp.records import PACKED, read_records
from rope_exp.runs import ReportError, Run, is_run, read_run

# Columns from config.yaml; other keys that differ are added.
_OF_CONFIG = (
    "seed",
    "data.name",
    "data.seed",
    "model.name",
    "model.hidden_size",
    "optim.lr",
    "train.num_steps",
    "train.seq_len",
    "train.precision",
    "train.compile",
    "train.micro_batch_size",
    "pe.precision",
    "launch.num_threads",
)
_OF_ENV = ("device", "torch", "num_threads")
# Left out: where a run goes, how it is watched, keys that `pe` and `rotate` repeat, and the text
# behind a hash.
_LEFT_OUT = ("run.", "launch.", "tracker.", "pe.name", "pe.rotate", "pe.source")


def load_runs(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per run.

    Args:
        where: a folder at or above run folders, or at or above records.
    Returns:
        Columns have the keys of result.json and of the command line; `where` names the run, and is
        the index. Every key that differs between these runs is included, except where they lie and
        how they were watched. `cached` counts the numbers that a layer caches per token, `state`
        those that do not grow. A run that is not done has no loss.
    Raises:
        RecordError: a run or a record cannot be read, or there is none.
    """
    lines = []
    for run, keys in _read(Path(where)):
        config = run.config
        cached, state = kept(config.attn, config.model, config.pe)
        line: dict[str, Any] = {
            **{key: run.result.get(key) for key in Result.__annotations__},
            "where": run.where,
            "group": run.group,
            "row": run.row,
            "pe": config.pe.label,
            "variant": run.variant_name,
            "rotate": "".join(config.pe.rotate),
            "kind": config.attn.label,
            "cached": cached,
            "state": state,
            "status": run.status,
            **{key: attrgetter(key)(config) for key in _OF_CONFIG},
            **{key: run.env.get(key) for key in _OF_ENV},
            "commit": (run.env.get("git") or {}).get("commit"),
        }
        lines.append(line | keys)
    return pd.DataFrame(lines).set_index("where", drop=False).rename_axis(index=None)


def load_metrics(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per row of a run's metrics: step, tokens, losses, and its keys.

    Arguments, errors and further keys are those of `load_runs`.
    """
    runs = _read(Path(where))
    return pd.DataFrame([row | _names(run) | keys for run, keys in runs for row in run.metrics])


def load_probes(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per number from a finished model's probes: `value`, by place.

    `probe` and `at` are the name and the place of the number, as in a report's probes.csv.
    Arguments, errors and further keys are those of `load_runs`.
    """
    lines: list[dict[Any, Any]] = []
    for run, keys in _read(Path(where)):
        for probe in [probe for probe in probes_by_place() if probe in run.probes]:
            numbers = _by_place(probe, run).rename("value").reset_index()
            lines += [_names(run) | keys | line for line in numbers.to_dict("records")]
    return pd.DataFrame(lines, columns=None if lines else ["where", "probe", "at", "value"])


def load_table(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a table.csv, or that of a folder, with `pe` as the index.

    Raises:
        ReportError: there is no such table.
    """
    file = Path(path)
    file = file / "table.csv" if file.is_dir() else file
    try:
        table = pd.read_csv(file, converters={"group": str})
        # NoPE rotates nothing, and its cell is empty.
        table["rotate"] = table["rotate"].fillna("")
        return table.set_index("pe", drop=False).rename_axis(index=None)
    except (OSError, ValueError, KeyError) as error:
        raise ReportError(f"{file} is not a table.csv: {error}") from error


def probes_by_place() -> list[str]:
    """Return the names of the probes with PLACES, by their ORDER."""
    probes = {name: chosen("probes", name, "train.probes") for name in choices("probes")}
    found = [name for name, probe in probes.items() if hasattr(probe, "PLACES")]
    return sorted(found, key=lambda name: probes[name].ORDER)


def by_seed(row: Row, probe: str) -> pd.DataFrame:
    """Return a row's answers to a probe with PLACES: a line for each seed.

    Columns are by `probe`, the name of the numbers, and `at`. Runs that were probed at other places
    than the first are left out.
    """
    runs = [run for run in row.runs if probe in run.probes]
    first, *others = (_by_place(probe, run) for run in runs)
    same = [first, *(answer for answer in others if answer.index.equals(first.index))]
    return pd.DataFrame(same)


def _by_place(probe: str, run: Run) -> "pd.Series[float]":
    """Return a run's answer, named by its seed: numbers by `probe`, their name, and `at`.

    Attention by distance is the mean over layers.
    """
    answer = run.probes[probe]
    found = {}
    for name, (places, numbers) in chosen("probes", probe, "train.probes").PLACES.items():
        values = answer[numbers]
        if isinstance(values, Mapping):
            values = np.mean(list(values.values()), axis=0)
        # The last edge begins no bin.
        found[name] = pd.Series(values, answer[places][: len(values)], dtype=float)
    return pd.concat(found, names=["probe", "at"]).rename(run.config.seed)


def _read(folder: Path) -> list[tuple[Run, dict[str, Any]]]:
    """Return every run at or below a folder, by path; if there are none, every record.

    Beside each run are its values of its campaign's factors, and of the keys in which runs differ.
    """
    places = [path for path in sorted([folder, *folder.rglob("*")]) if is_run(path)]
    # Hidden folders hold runs that were set aside.
    hidden = [any(part[0] == "." for part in path.relative_to(folder).parts) for path in places]
    runs = [read_run(path) for path, is_hidden in zip(places, hidden, strict=True) if not is_hidden]
    if not runs:
        # The folder may be that of one campaign, packed or not.
        packed = [*folder.parent.glob(f"{folder.name}{PACKED}"), *folder.rglob(f"*{PACKED}")]
        campaigns = {path.with_name(path.name.removesuffix(PACKED)) for path in packed}
        campaigns |= {path.parent for path in folder.rglob("*.json")}
        runs = [run for path in sorted(campaigns) for run in read_records(path.parent, path.name)]
    if not runs:
        raise ReportError(f"{folder} holds neither runs nor records")

    configs: Any = pd.json_normalize([run.config.to_dict() for run in runs]).astype(object)
    configs = configs.where(configs.notna(), None)
    shown = [key for key in configs if not key.startswith(_LEFT_OUT)]
    differ = [key for key in shown if configs[key].map(repr).nunique() > 1]
    found = []
    for run, config in zip(runs, configs[shown].to_dict("records"), strict=True):
        # Keys of the launcher are not shown, but may be a factor.
        keys = dict.fromkeys([*run.factors, *differ])
        found.append((run, {key: config.get(key, run.factors.get(key)) for key in keys}))
    return found


def _names(run: Run) -> dict[str, Any]:
    """Return the first columns of each line of a longer frame."""
    config = run.config
    return {
        "where": run.where,
        "pe": config.pe.label,
        "seed": config.seed,
        "optim.lr": config.optim.lr,
    }
