"""A campaign: many runs that answer one question, listed in configs/campaign/NAME.yaml.

    about: what is asked
    python: 3.11.7              # where the embedded corpus is read, which is its source
    fixed: [data=files, ...]    # overrides of every cell
    rows:                       # a name and its overrides; or a list of variants of configs/pe
      qk_rope: [pe=qk_rope]
    cells:                      # each: rows (all, unless it says which) x factors (every value with
      - seed: [0, 1, 2]         # every other), in the order of their seeds
      - rows: [qk_rope]
        seed: [3]
        train.num_steps: [500, 1000]

Nothing in it is left to the machine: where `auto` could mean two things, a cell is refused.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rope_exp.config.compose import CONFIGS, compose_jobs
from rope_exp.config.resolve import operations
from rope_exp.config.run import RunConfig
from rope_exp.config.schema import Name, convert, has_aliases, unknown_key
from rope_exp.system.errors import ConfigError, first_line, show

FOLDER = "campaign"
# The campaign that measures noise, whose report is of its own.
PILOT = "noise"

# A block is what has these in common.
SEEDS = ("seed", "data.seed")
# What may not be left to the machine: it could change a number, or which cores a cell has.
DECIDED = (
    "train.precision",
    "train.compile",
    "train.deterministic",
    "launch.device",
    "launch.num_threads",
    "launch.max_parallel",
)
MAX_CELLS = 10_000


@dataclass(frozen=True)
class Cell:
    """One run of a campaign.

    Attributes:
        name: of the cell, its record and its run's folder: qk_rope-train.num_steps=1000-s0.
        row: the name of its row.
        factors: the values that its entry gives it, by key.
        config: with a folder of its own; not yet resolved for a machine.
    """

    name: str
    row: str
    factors: Mapping[str, Any]
    config: RunConfig


@dataclass(frozen=True)
class Campaign:
    """What configs/campaign/NAME.yaml says, its cells in the order in which they are run."""

    name: str
    about: str
    python: str | None
    cells: tuple[Cell, ...]


def load_campaign(name: str, config_dir: Path | None, runs: Path) -> Campaign:
    """Read a campaign and compose every cell of it.

    Args:
        name: of the file, without .yaml.
        config_dir: a further folder of groups, whose campaigns come first.
        runs: the cells' folders are made in <runs>/<name>.
    Raises:
        ConfigError: there is no such campaign, it is none, or a cell cannot be run as it says.
    """
    convert(Name, name, "campaign")
    values = _read(name, config_dir)
    where = f"{FOLDER}/{name}"

    about = convert(str, values.pop("about", ""), f"{where}: about")
    python = convert(str | None, values.pop("python", None), f"{where}: python")
    fixed = convert(tuple[str, ...], values.pop("fixed", []), f"{where}: fixed")
    rows = _groups(values.pop("rows", None), f"{where}: rows")
    entries = values.pop("cells", None)
    for key in values:
        raise unknown_key(key, ("about", "python", "fixed", "rows", "cells"))
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{where}: cells", entries, "must be a list of rows and factors")

    listed: dict[str, tuple[tuple[int, int, int], Cell]] = {}
    for number, entry in enumerate(entries):
        at = f"{where}: cells[{number}]"
        factors = _factors(entry, at)
        chosen = factors.pop("rows", list(rows))
        for row in chosen:
            if row not in rows:
                raise ConfigError(f"{at}.rows", row, f"must be one of {', '.join(rows)}")

        rounds = _rounds(factors)
        for values_of_cell in itertools.product(*factors.values()):
            of_cell = dict(zip(factors, values_of_cell, strict=True))
            round_number = rounds[_seeds(of_cell)]
            for row in chosen:
                name_of_cell = _cell_name(row, of_cell)
                words = [*fixed, *rows[row], *(f"{key}={show(of_cell[key])}" for key in of_cell)]
                config = compose_jobs(words, config_dir).configs[0]
                _check_decided(config, f"{where}: {name_of_cell}")
                placed = config.replace("run", dir=str(runs / name / name_of_cell))
                cell = Cell(name_of_cell, row, of_cell, placed)
                if name_of_cell in listed:
                    raise ConfigError(at, name_of_cell, "is listed twice")
                listed[name_of_cell] = ((round_number, -operations(config), len(listed)), cell)
                if len(listed) > MAX_CELLS:
                    raise ConfigError(where, ..., f"lists more than {MAX_CELLS:,} cells")

    # Seed by seed, and within a seed the longest first, so that every beginning is balanced and
    # the last to end is a short one.
    ordered = sorted(listed.values(), key=lambda placed: placed[0])
    return Campaign(name, about, python, tuple(cell for _, cell in ordered))


def campaign_names(config_dir: Path | None = None) -> list[str]:
    """Return the campaigns that there are."""
    folders = [folder / FOLDER for folder in (config_dir, CONFIGS) if folder is not None]
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def _read(name: str, config_dir: Path | None) -> dict[str, Any]:
    folders = [folder / FOLDER for folder in (config_dir, CONFIGS) if folder is not None]
    for folder in folders:
        path = folder / f"{name}.yaml"
        if path.is_file():
            break
    else:
        names = ", ".join(campaign_names(config_dir)) or "none"
        raise ConfigError("campaign", name, f"there is no such campaign; there is {names}")

    try:
        text = path.read_text(encoding="utf-8")
        values = {} if has_aliases(text) else yaml.safe_load(text)
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(str(path), ..., f"cannot be read: {first_line(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(str(path), ..., "must be a group of keys, without anchors")
    return values


def _groups(values: Any, key: str) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each row by its name: of a list, the variants of configs/pe."""
    if isinstance(values, list):
        values = {name: [f"pe={name}"] for name in convert(tuple[Name, ...], values, key)}
    if not isinstance(values, dict) or not values:
        raise ConfigError(key, values, "must give each row's name its overrides, or list variants")
    rows = {}
    for name, words in values.items():
        convert(Name, name, key)
        rows[name] = convert(tuple[str, ...], words, f"{key}.{name}")
    return rows


def _factors(entry: Any, key: str) -> dict[str, list[Any]]:
    """Return an entry's values by key, each a list of some."""
    if not isinstance(entry, dict):
        raise ConfigError(key, entry, "must be a group of keys")
    for name, values in entry.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{key}.{name}", values, "must be a list of values")
    if "seed" not in entry:
        raise ConfigError(f"{key}.seed", ..., "is missing: the seeds of the cells, in order")
    return dict(entry)


def _seeds(factors: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(factors.get(key) for key in SEEDS)


def _rounds(factors: Mapping[str, Sequence[Any]]) -> dict[tuple[Any, ...], int]:
    """Return the place of each choice of seeds in the order in which an entry lists them."""
    choices = itertools.product(*(factors.get(key, [None]) for key in SEEDS))
    return {choice: place for place, choice in enumerate(choices)}


def _cell_name(row: str, factors: Mapping[str, Any]) -> str:
    """Return what tells a cell from the others: its row, its factors, its seed."""
    parts = [f"{key}={show(value)}" for key, value in factors.items() if key != "seed"]
    return convert_name("-".join([row, *parts, f"s{factors['seed']}"]))


def convert_name(text: str) -> str:
    """Return text as the name of a file."""
    return "".join(c if c.isalnum() or c in "._+-=," else "_" for c in text)


def _check_decided(config: RunConfig, where: str) -> None:
    """Refuse a cell that would leave to the machine what can change a number."""
    for key in DECIDED:
        section, _, name = key.partition(".")
        if getattr(getattr(config, section), name) == "auto":
            raise ConfigError(f"{where}: {key}", "auto", "must be fixed, as all of a campaign is")
