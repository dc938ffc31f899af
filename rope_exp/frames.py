"""Results as pandas frames: runs, curves, answers to probes, and tables that `report` wrote."""

import re
from collections.abc import Mapping
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rope_exp.config import DEFAULT_OUTPUT, RunConfig
from rope_exp.costs import kept
from rope_exp.folder import Result
from rope_exp.identity import choices, chosen
from rope_exp.records import PACKED, read_records
from rope_exp.runs import ReportError, Run, is_run, read_run

# Columns from config.yaml, named as on the command line; other keys that differ are added.
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
_NOT_TOLD = ("run.", "launch.", "tracker.", "pe.name", "pe.rotate", "pe.source")


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
    lines = pd.DataFrame([_line(run) | keys for run, keys in _read(Path(where))])
    return lines.set_index("where", drop=False).rename_axis(index=None)


def load_metrics(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per row of a run's metrics: step, tokens, losses, and its keys.

    Every key that differs between these runs is included, as in `load_runs`.

    Args, Raises: as `load_runs`.
    """
    found = _read(Path(where))
    return pd.DataFrame(
        [{**row, **_names(run), **keys} for run, keys in found for row in run.metrics]
    )


def load_probes(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per number from a finished model's probes: `value`, by place.

    `probe` and `at` are the name and the place of the number, as `by_place` explains and as in a
    report's probes.csv. Every key that differs between these runs is included, as in `load_runs`;
    without answers there is no line.

    Args, Raises: as `load_runs`.
    """
    lines: list[dict[Any, Any]] = []
    for run, keys in _read(Path(where)):
        for probe in [probe for probe in probes_by_place() if probe in run.probes]:
            numbers = by_place(probe, run.probes[probe]).reset_index(name="value")
            lines += [{**_names(run), **keys, **line} for line in numbers.to_dict("records")]
    return pd.DataFrame(lines, columns=None if lines else ["where", "probe", "at", "value"])


def load_table(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a table.csv, with `pe` as the index.

    Args:
        path: the file, or its folder.
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


def by_place(probe: str, answer: Mapping[str, Any]) -> "pd.Series[float]":
    """Return a run's answer to a probe with PLACES: numbers by `probe`, their name, and `at`.

    PLACES has the keys of an answer's places and numbers, by the name of the numbers: losses by
    length of window (`positions`), by the first position of a bin (`bins`), by start of positions
    (`shift`), without the rotation of a site (`ablation`), at the first and the second reading
    (`repeat`); the mean weight on a key by its distance, over layers (`distance`), beside uniform
    weights (`uniform`).
    """
    found = {}
    for name, (places, numbers) in chosen("probes", probe, "train.probes").PLACES.items():
        values = answer[numbers]
        if isinstance(values, Mapping):
            values = np.mean(list(values.values()), axis=0)
        # The last edge begins no bin.
        found[name] = pd.Series(values, answer[places][: len(values)], dtype=float)
    return pd.concat(found, names=["probe", "at"])


def _read(folder: Path) -> list[tuple[Run, dict[str, Any]]]:
    """Return every run at or below a folder, by path; if there are none, every record.

    Returns:
        Each run with its values of its campaign's factors, and of the keys in which runs differ.
    Raises:
        RecordError: one cannot be read, or there is none.
    """
    # Hidden folders hold runs that were set aside.
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
    shown = [folder / name for name in names if not re.search(r"(^|/)\.", name.as_posix())]
    runs = [read_run(path) for path in (folder, *shown) if is_run(path)]
    if not runs:
        # The folder may be that of one campaign, packed or not.
        packed = [folder.with_name(f"{folder.name}{PACKED}"), *folder.rglob(f"*{PACKED}")]
        places = {(path.parent, path.name.removesuffix(PACKED)) for path in packed if path.exists()}
        places |= {(path.parent.parent, path.parent.name) for path in folder.rglob("*.json")}
        runs = [run for place, name in sorted(places) for run in read_records(place, name)]
    if not runs:
        raise ReportError(f"{folder} holds neither runs nor records")

    configs = [_keys(run.config) for run in runs]
    every = dict.fromkeys(key for config in configs for key in config)
    differ = [key for key in every if len({repr(config.get(key)) for config in configs}) > 1]
    found = []
    for run, config in zip(runs, configs, strict=True):
        # Keys of the launcher are no part of the config here, but may be a factor.
        keys = dict.fromkeys([*run.factors, *differ])
        found.append((run, {key: config.get(key, run.factors.get(key)) for key in keys}))
    return found


def _keys(config: RunConfig) -> dict[str, Any]:
    """Return a config's values by key, as the command line spells it."""
    [values] = pd.json_normalize(config.to_dict()).to_dict("records")
    found = {str(key): value for key, value in values.items()}
    return {key: value for key, value in found.items() if not key.startswith(_NOT_TOLD)}


def _names(run: Run) -> dict[str, Any]:
    """Return the columns of each line of a longer frame."""
    config = run.config
    return {
        "where": run.where,
        "pe": config.pe.label,
        "seed": config.seed,
        "optim.lr": config.optim.lr,
    }


def _line(run: Run) -> dict[str, Any]:
    cached, state = kept(run.config.attn, run.config.model, run.config.pe)
    line: dict[str, Any] = {
        **{key: run.result.get(key) for key in Result.__annotations__},
        "where": run.where,
        "group": run.group,
        "row": run.row,
        "pe": run.config.pe.label,
        "variant": run.variant_name,
        "rotate": "".join(run.config.pe.rotate),
        "kind": run.config.attn.label,
        "cached": cached,
        "state": state,
        "status": run.status,
    }
    line |= {key: attrgetter(key)(run.config) for key in _OF_CONFIG}
    line |= {key: run.env.get(key) for key in _OF_ENV}
    line["commit"] = (run.env.get("git") or {}).get("commit")
    return line
