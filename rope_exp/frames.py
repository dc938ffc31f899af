"""Results as pandas frames: runs, curves, answers to probes, and tables that `report` wrote."""

import io
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from rope_exp.campaign import records
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.files import read_bytes
from rope_exp.folder import ReportError, Result, Run, is_run, read_run

# Columns from config.yaml; other keys that differ are added.
_OF_CONFIG = [
    "data.name",
    "data.seed",
    "model.name",
    "model.hidden_size",
    "optim.lr",
    "pe.precision",
    "train.num_steps",
    "train.seq_len",
    "train.precision",
    "train.compile",
    "train.micro_batch_size",
    "launch.num_threads",
]
# Left out: where a run goes, how it is watched, keys that `pe` and `rotate` repeat, and the text
# behind a hash.
_LEFT_OUT = ("run.", "launch.", "tracker.", "pe.name", "pe.rotate", "pe.source")


def load_runs(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per run at or below a folder, or per record.

    Columns have the keys of result.json and of the command line; `where` names the run, and is the
    index. Every key that differs between these runs is included, except where they lie, how they
    were launched and watched, and the name, sites and code text of `pe`. `cached` counts the
    numbers that a layer caches per token, `state` those that do not grow. A run that is not done
    has no loss.

    Raises:
        RunFolderError: a run or a record cannot be read, or there is none.
    """
    # Imported late: it takes torch, which the other frames need not wait for.
    from rope_exp.costs import cached_sizes

    lines = []
    for run, identifying in _read(Path(where)):
        config = run.config
        cached, state = cached_sizes(config.attn, config.model, config.pe)
        line = {
            **{key: run.result.get(key) for key in Result.__annotations__},
            "group": run.group,
            "row": run.row,
            "variant": run.variant_name,
            "kind": config.attn.label,
            "cached": cached,
            "state": state,
            **{key: attrgetter(key)(config) for key in _OF_CONFIG},
            **{key: run.env.get(key) for key in ("device", "torch", "num_threads")},
            "commit": (run.env.get("git") or {}).get("commit"),
            "rotate": "".join(config.pe.rotate),
            "status": run.status,
        }
        lines.append(line | identifying)
    return pd.DataFrame(lines).set_index("where", drop=False).rename_axis(index=None)


def load_metrics(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per row of a run's metrics, with keys as in `load_runs`."""
    lines: list[dict[str, Any]] = []
    for run, identifying in _read(Path(where)):
        lines += [metrics_row | identifying for metrics_row in run.metrics]
    return pd.DataFrame(lines)


def load_probes(where: str | PathLike[str] = DEFAULT_OUTPUT) -> pd.DataFrame:
    """Return a frame with one line per `value` of a probe, with keys as in `load_runs`.

    `probe` and `at` are the name and the place of the number, as in a report's probes.csv.
    """
    # Imported late: a report takes scipy, which the other frames need not wait for.
    from rope_exp.report import parts

    lines: list[dict[Any, Any]] = []
    for run, identifying in _read(Path(where)):
        for probe, part in parts("probes"):
            if part.places is not None and probe in run.probes:
                numbers = part.places.of_run(run, probe).rename("value").reset_index()
                lines += [identifying | line for line in numbers.to_dict("records")]
    return pd.DataFrame(lines, columns=None if lines else ["where", "probe", "at", "value"])


def load_table(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a table.csv, or that of a folder, with `pe` as the index."""
    file = Path(path)
    file = file / "table.csv" if file.is_dir() else file
    try:
        table = pd.read_csv(io.BytesIO(read_bytes(file)), converters={"group": str})
        # NoPE rotates nothing, and its cell is empty.
        table["rotate"] = table["rotate"].fillna("")
        return table.set_index("pe", drop=False).rename_axis(index=None)
    except (OSError, ValueError, KeyError) as error:
        raise ReportError(f"{file} is not a table.csv: {error}") from error


def _read(folder: Path) -> list[tuple[Run, dict[str, Any]]]:
    """Return every run below a folder, or else every record, each with its identifying values.

    Returns:
        For each run, a mapping from `where`, pe, seed, its factors and the keys that differ between
        these runs to its values.
    """
    runs = []
    for path in sorted([folder, *folder.rglob("*")]):
        # Hidden folders hold runs that were set aside.
        is_hidden = any(part[0] == "." for part in path.relative_to(folder).parts)
        if not is_hidden and is_run(path):
            runs.append(read_run(path))
    if not runs:
        # The folder may be that of one campaign, packed or not.
        ending = records.PACKED
        campaigns = {path.parent for path in folder.rglob("*.json")}
        packed = [*folder.parent.glob(f"{folder.name}{ending}"), *folder.rglob(f"*{ending}")]
        campaigns |= {path.with_name(path.name.removesuffix(ending)) for path in packed}
        for path in sorted(campaigns):
            runs += records.read_records(path.parent, path.name)
    if not runs:
        raise ReportError(f"{folder} holds neither runs nor records")

    configs: Any = pd.json_normalize([run.config.to_dict() for run in runs]).astype(object)
    configs = configs.where(configs.notna(), None)
    configs = configs[[key for key in configs if not key.startswith(_LEFT_OUT)]]
    differing = [key for key in configs if configs[key].map(repr).nunique() > 1]
    named = []
    for run, config in zip(runs, configs.to_dict("records"), strict=True):
        identifying = {"where": run.where, "pe": run.config.pe.label, "seed": run.config.seed}
        for key in ("optim.lr", *run.factors, *differing):
            # Keys of the launcher are not shown, but may be a factor.
            identifying[key] = config.get(key, run.factors.get(key))
        named.append((run, identifying))
    return named
