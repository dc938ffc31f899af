"""Answers of one finished model to the probes that depend on a place, under plain names."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.costs import kept
from rope_exp.records import PACKED, read_records
from rope_exp.runs import ReportError, Run, folders_in, is_run, read_run

# The probes that are answered by place only.
BY_PLACE = ("positions", "shift", "ablation", "repeat", "distance")

Numbers = dict[Any, float]


def by_place(probe: str, answer: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return a run's answer to one of BY_PLACE: numbers by name, and by place.

    Losses by length of window (`positions`), by the first position of a bin (`bins`), by start of
    positions (`shift`), without the rotation of a site (`ablation`), at the first and the second
    reading (`repeat`); the mean weight on a key by its distance, over layers (`distance`), beside
    uniform weights (`uniform`).
    """
    if probe == "distance":
        over_layers = np.mean(list(answer["attention"].values()), axis=0)
        return {
            "distance": _numbers(answer["m"], over_layers.tolist()),
            "uniform": _numbers(answer["m"], answer["uniform"]),
        }

    places, losses = {
        "positions": ("lengths", "loss_at_length"),
        "shift": ("start", "loss"),
        "ablation": ("without", "loss"),
        "repeat": ("reading", "loss"),
    }[probe]
    found = {probe: _numbers(answer[places], answer[losses])}
    if probe == "positions":
        found["bins"] = _numbers(answer["edges"][:-1], answer["loss"])
    return found


def _numbers(places: Sequence[Any], numbers: Sequence[float]) -> Numbers:
    return dict(zip(places, numbers, strict=True))


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
_OF_RESULT = (
    "val/loss",
    "train/loss_last",
    "params",
    "tokens",
    "steps",
    "tokens_per_s",
    "mfu",
    "wall_s",
    "init_sha256",
    "data_sha256",
    "order_sha256",
    "config_sha256",
    "group_sha256",
)
_OF_ENV = ("device", "torch", "num_threads")
# Columns of every line of a longer frame.
_NAMES = ("where", "pe", "seed", "optim.lr")
# Left out: where a run goes, how it is watched, keys that `pe` and `rotate` repeat, and the text
# behind a hash.
_NOT_TOLD = ("run", "launch", "tracker", "pe.name", "pe.rotate", "pe.source")


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
    runs = list(_runs(Path(where)))
    told = _told_apart(runs)
    lines = pd.DataFrame([_line(run) | keys for run, keys in zip(runs, told, strict=True)])
    return lines.set_index("where", drop=False).rename_axis(index=None)


def load_metrics(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per row of a run's metrics: step, tokens, losses, and its keys.

    Every key that differs between these runs is included, as in `load_runs`.

    Args, Raises: as `load_runs`.
    """
    frames = []
    for run, told in _named(list(_runs(Path(where)))):
        frame = pd.DataFrame(run.metrics)
        for key, value in told.items():
            frame[key] = [value] * len(frame)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def load_probes(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per number from a finished model's probes: `value`, by place.

    `probe` names the number and `at` its place, as in a report's probes.csv: a loss by length of
    window (`positions`), by position (`bins`), by start of positions (`shift`), without the
    rotation of a site (`ablation`) or at the first and second reading (`repeat`), or a mean weight
    on a key by its distance (`distance`), beside uniform weights (`uniform`). Every key that
    differs between these runs is included, as in `load_runs`; without answers there is no line.

    Args, Raises: as `load_runs`.
    """
    lines = []
    for run, told in _named(list(_runs(Path(where)))):
        for probe in (each for each in BY_PLACE if each in run.probes):
            for name, numbers in by_place(probe, run.probes[probe]).items():
                for place, value in numbers.items():
                    lines.append({**told, "probe": name, "at": place, "value": value})
    return pd.DataFrame(lines, columns=None if lines else [*_NAMES, "probe", "at", "value"])


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


def _named(runs: Sequence[Run]) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield each run, and its columns in a longer frame."""
    for run, keys in zip(runs, _told_apart(runs), strict=True):
        told = (run.where, run.config.pe.label, run.config.seed, run.config.optim.lr)
        yield run, dict(zip(_NAMES, told, strict=True)) | keys


def _runs(folder: Path) -> Iterator[Run]:
    """Yield every run at or below a folder, by path; if there are none, every record.

    Raises:
        RecordError: one cannot be read, or there is none.
    """
    folders = [folder, *_below(folder)]
    found = [read_run(path) for path in folders if is_run(path)]
    if not found:
        # The folder may be that of one campaign, packed or not.
        packed = [folder.with_name(f"{folder.name}{PACKED}"), *folder.rglob(f"*{PACKED}")]
        names = [(path.parent, path.name.removesuffix(PACKED)) for path in packed if path.exists()]
        names += [(path.parent.parent, path.parent.name) for path in folder.rglob("*.json")]
        found = [run for place, name in sorted({*names}) for run in read_records(place, name)]
    if not found:
        raise ReportError(f"{folder} holds neither runs nor records")
    yield from found


def _below(folder: Path) -> Iterator[Path]:
    """Yield every folder below one, by path, except hidden ones, which hold runs set aside."""
    for inside in folders_in(folder):
        yield inside
        yield from _below(inside)


def _told_apart(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return each run's values of its campaign's factors, and of the keys in which runs differ."""
    configs = [dict(_keys(run.config.to_dict())) for run in runs]
    every = dict.fromkeys(key for config in configs for key in config)
    differ = [key for key in every if len({repr(config.get(key)) for config in configs}) > 1]
    return [
        # Keys of the launcher are no part of the config here, but may be a factor.
        {
            key: config.get(key, run.factors.get(key))
            for key in dict.fromkeys([*run.factors, *differ])
        }
        for run, config in zip(runs, configs, strict=True)
    ]


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of a config as the command line spells it, and its value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in _NOT_TOLD:
            continue
        if isinstance(value, Mapping):
            yield from _keys(value, f"{key}.")
        else:
            yield key, value


def _line(run: Run) -> dict[str, Any]:
    cached, state = kept(run.config.attn, run.config.model, run.config.pe)
    line: dict[str, Any] = {
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
    line |= {key: run.result.get(key) for key in _OF_RESULT}
    line |= {key: run.env.get(key) for key in _OF_ENV}
    git = run.env.get("git")
    line["commit"] = git.get("commit") if git else None
    return line
