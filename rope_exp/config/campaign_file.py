"""A campaign's file, configs/campaign/NAME.yaml, read and checked; campaign.py composes its cells.

    about: what is asked
    python: 3.11.7              # where the embedded corpus is read, which is its source
    test: paired                # each pair by its own deviation; else pooled unless noise differs
    fixed: [data=files, ...]    # overrides of every cell
    rows:                       # a name and its overrides; or a list of variants of configs/pe
      qk_rope: [pe=qk_rope]
    cells:                      # each: rows (all, unless it says which) x factors (every value with
      - seed: [0, 1, 2]         # every other), in the order of their seeds
      - rows: [qk_rope]
        seed: [3]
        train.seq_len: [64]
        fixed: [train.global_batch_size=64]     # overrides of this entry's cells

Of words about one key the last counts: a row's, or a factor's, after what is fixed.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rope_exp.config.compose import CONFIGS
from rope_exp.config.mistakes import CAMPAIGNS
from rope_exp.config.schema import Name, Seed, convert, unknown_key
from rope_exp.system.errors import ConfigError, first_line

KEYS = ("about", "python", "test", "fixed", "rows", "cells")

# How differences are judged. Records repeat it, so that tables are made from these alone.
Test = Literal["paired"]

# A block is what has these in common.
SEEDS = ("seed", "data.seed")


@dataclass(frozen=True)
class Entry:
    """One of the file's `cells`: some rows, and every value of a factor with every other.

    Attributes:
        key: where it stands, for an error.
        fixed: overrides of its cells.
    """

    key: str
    rows: Sequence[str]
    factors: Mapping[str, Sequence[Any]]
    fixed: Sequence[str] = ()

    @property
    def num_cells(self) -> int:
        """How many cells it lists."""
        return len(self.rows) * math.prod(map(len, self.factors.values()))

    def choices(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield a value of each factor, and the place of its seeds among those of the entry."""
        seeds = itertools.product(*(self.factors.get(key, [None]) for key in SEEDS))
        places = {choice: place for place, choice in enumerate(seeds)}

        for values in itertools.product(*self.factors.values()):
            chosen = dict(zip(self.factors, values, strict=True))
            yield places[tuple(chosen.get(key) for key in SEEDS)], chosen


@dataclass(frozen=True)
class CampaignFile:
    """What a campaign's file says.

    Attributes:
        test: the rule of docs/protocol-2.md; None: that of docs/protocol.md.
        fixed: overrides of every cell.
        rows: the overrides of each row by its name.
    """

    about: str
    python: str | None
    test: Test | None
    fixed: Sequence[str]
    rows: Mapping[str, Sequence[str]]
    entries: Sequence[Entry]


def read_campaign(name: str, config_dir: Path | None) -> CampaignFile:
    """Read a campaign's file.

    Raises:
        ConfigError: there is no such campaign, or it is none.
    """
    convert(Name, name, "campaign")
    values = _read(name, config_dir)
    where = f"{CAMPAIGNS}/{name}"
    for key in values:
        if key not in KEYS:
            raise unknown_key(key, KEYS)

    rows = _rows(values.get("rows"), f"{where}: rows")
    return CampaignFile(
        about=convert(str, values.get("about", ""), f"{where}: about"),
        python=convert(str | None, values.get("python"), f"{where}: python"),
        test=convert(Test | None, values.get("test"), f"{where}: test"),
        fixed=convert(tuple[str, ...], values.get("fixed", []), f"{where}: fixed"),
        rows=rows,
        entries=_entries(values.get("cells"), rows, f"{where}: cells"),
    )


def campaign_names(config_dir: Path | None = None) -> list[str]:
    """Return the campaigns that there are."""
    return sorted({path.stem for folder in _folders(config_dir) for path in folder.glob("*.yaml")})


def _folders(config_dir: Path | None) -> list[Path]:
    """Return the folders of campaigns, that of the user's own first."""
    return [folder / CAMPAIGNS for folder in (config_dir, CONFIGS) if folder is not None]


def _read(name: str, config_dir: Path | None) -> dict[str, Any]:
    """Return the keys of a campaign's file."""
    paths = [folder / f"{name}.yaml" for folder in _folders(config_dir)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        names = ", ".join(campaign_names(config_dir)) or "none"
        raise ConfigError("campaign", name, f"there is no such campaign; there is {names}")

    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.safe_load(text)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # A ValueError is text that is not UTF-8, or a date or a number that is none.
        raise ConfigError(str(path), ..., f"cannot be read: {first_line(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(str(path), ..., f"must be a group of keys: {', '.join(KEYS)}")
    return values


def _rows(values: Any, key: str) -> dict[str, tuple[str, ...]]:
    """Return the overrides of each row by its name."""
    if isinstance(values, list):
        values = {name: [f"pe={name}"] for name in convert(tuple[Name, ...], values, key)}
    if not isinstance(values, dict) or not values:
        allowed = "must give each row's name its overrides, or list variants"
        raise ConfigError(key, values, allowed)
    rows = {}
    for name, words in values.items():
        convert(Name, name, key)
        rows[name] = convert(tuple[str, ...], words, f"{key}.{name}")
    return rows


def _entries(values: Any, rows: Mapping[str, Sequence[str]], key: str) -> list[Entry]:
    """Return the entries of `cells`, checked."""
    if not isinstance(values, list) or not values:
        raise ConfigError(key, values, "must be a list of rows and factors")
    return [_entry(each, rows, f"{key}[{number}]") for number, each in enumerate(values)]


def _entry(values: Any, rows: Mapping[str, Sequence[str]], key: str) -> Entry:
    if not isinstance(values, dict):
        raise ConfigError(key, values, "must be a group of keys")
    if "seed" not in values:
        raise ConfigError(f"{key}.seed", ..., "is missing: the seeds of the cells, in order")
    for name, listed in values.items():
        convert(str, name, key)
        if not isinstance(listed, list) or not listed:
            raise ConfigError(f"{key}.{name}", listed, "must be a list of values")

    factors = dict(values)
    fixed = convert(tuple[str, ...], factors.pop("fixed", []), f"{key}.fixed")
    chosen = convert(tuple[str, ...], factors.pop("rows", list(rows)), f"{key}.rows")
    for row in chosen:
        if row not in rows:
            raise ConfigError(f"{key}.rows", row, f"must be one of {', '.join(rows)}")
        for word in rows[row]:
            # Else the row's name would say what it is not.
            name = word.partition("=")[0]
            if name in factors:
                raise ConfigError(f"{key}.{name}", ..., f"is what row {row} says itself")

    for name, listed in factors.items():
        _check_values(listed, f"{key}.{name}")
    convert(tuple[Seed, ...], factors["seed"], f"{key}.seed")
    convert(tuple[Seed | None, ...], factors.get("data.seed", []), f"{key}.data.seed")
    return Entry(key, chosen, factors, fixed)


def _check_values(values: Sequence[Any], key: str) -> None:
    """Refuse what neither a command line nor a record could spell."""
    for value in values:
        if isinstance(value, list):
            _check_values(value, key)
            continue
        is_text = isinstance(value, str) and value.isprintable()
        is_finite = isinstance(value, float) and math.isfinite(value)
        if not (value is None or isinstance(value, int) or is_text or is_finite):
            allowed = "must be true, false, a finite number, text, null, or a list of these"
            raise ConfigError(key, value, allowed)
