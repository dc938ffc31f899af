"""A campaign: many runs that answer one question, listed in a file (campaign_file.py).

Nothing in it is left to the machine: where `auto` could mean two things, a cell is refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from rope_exp.config.campaign_file import SEEDS, Test, read_campaign
from rope_exp.config.compose import compose_jobs
from rope_exp.config.mistakes import CAMPAIGNS
from rope_exp.config.resolve import operations
from rope_exp.config.run import RunConfig
from rope_exp.config.sections import PlaceConfig
from rope_exp.system.errors import ConfigError, show

# The campaign that measures noise, whose report is of its own.
PILOT = "noise"
# The campaign whose primary family decides (docs/protocol.md).
PRIMARY = "english"
# The same with a longer warmup, and so less noise, which later campaigns share.
STEADY = "warmup"
# The nine on English, at several budgets and warmups: what gains in other campaigns stand beside.
BASES = (PRIMARY, STEADY, "tokens")
# What may not be left to the machine: it could change a number, or which cores a cell has. On a
# GPU, which a run has to itself, as many may run at a time as there are.
DECIDED = (
    "train.precision",
    "train.compile",
    "train.deterministic",
    "launch.device",
    "launch.num_processes",
    "launch.num_threads",
    "launch.max_parallel",
)
UNDECIDED = ("auto", "all")
MAX_CELLS = 10_000
# Of a cell's name in bytes: its record's, while it is written, has ten more.
MAX_NAME = 240


@dataclass(frozen=True)
class Cell:
    """One run of a campaign.

    Attributes:
        name: of the cell, its record and its run's folder: qk_rope-train.num_steps=1000-s0.
        row: the name of its row.
        factors: the values that its entry gives it, by key.
        config: with a folder of its own; not yet resolved for a machine.
        test: how the campaign's differences are judged, as its file says.
    """

    name: str
    row: str
    factors: Mapping[str, Any]
    config: RunConfig
    test: Test | None = None


@dataclass(frozen=True)
class Campaign:
    """What configs/campaign/NAME.yaml says, its cells in the order in which they are run.

    Attributes:
        about: what is asked.
        python: the version whose library is the embedded corpus; None: no cell reads it.
    """

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
    file = read_campaign(name, config_dir)
    where = f"{CAMPAIGNS}/{name}"
    if sum(entry.num_cells for entry in file.entries) > MAX_CELLS:
        raise ConfigError(f"{where}: cells", ..., f"are more than {MAX_CELLS:,}")

    composer = _Composer(config_dir)
    cells: dict[str, Cell] = {}
    places: dict[str, tuple[int, int, int]] = {}
    for entry in file.entries:
        for seed_place, factors in entry.choices():
            for row in entry.rows:
                words = [*file.fixed, *entry.fixed, *file.rows[row]]
                cell = _cell(row, factors, words, entry.key, composer, runs / name)
                if cell.name in cells:
                    raise ConfigError(entry.key, cell.name, "is listed twice")
                if name != PILOT:
                    _check_factors(cell, entry.key)
                places[cell.name] = (seed_place, -operations(cell.config), len(cells))
                cells[cell.name] = replace(cell, test=file.test)

    _name_rows(cells)
    if file.python is None and any(cell.config.data.kind == "stdlib" for cell in cells.values()):
        raise ConfigError(f"{where}: python", ..., "is missing: its library is the corpus")

    # Seed by seed, and within a seed the longest first, so that every beginning is balanced and
    # the last to end is a short one.
    ordered = sorted(cells, key=places.__getitem__)
    return Campaign(name, file.about, file.python, tuple(cells[each] for each in ordered))


def cell_name(row: str, factors: Mapping[str, Any]) -> str:
    """Return what tells a cell from the others: its row, its factors, its seed.

    Factors in the order of their names: a record keeps no other.
    """
    parts = [f"{key}={show(value)}" for key, value in sorted(factors.items()) if key != "seed"]
    whole = "-".join([row, *parts, f"s{show(factors.get('seed'))}"])
    return "".join(c if c.isalnum() or c in "._+-=," else "_" for c in whole)


# -- a cell ------------------------------------------------------------------------------------


def _cell(
    row: str,
    factors: Mapping[str, Any],
    words: Sequence[str],
    key: str,
    composer: "_Composer",
    runs: Path,
) -> Cell:
    """Compose one cell.

    Args:
        words: the overrides of every cell, and of its row.
        key: of the entry that lists it.
        runs: the folder of the campaign's runs.
    """
    name = cell_name(row, factors)
    where = f"{key}: {name}"
    if len(name.encode()) > MAX_NAME:
        raise ConfigError(where, ..., f"is the name of a file, of at most {MAX_NAME} bytes")

    try:
        config = composer.compose(words, factors)
    except ConfigError as error:
        wrong, value, allowed = error.args
        raise ConfigError(f"{where}: {wrong}", value, allowed) from error

    _check_decided(config, where)
    return Cell(name, row, factors, config.replace("run", dir=str(runs / name)))


class _Composer:
    """Composes the cells of a campaign.

    Cells that differ in their seed alone are composed once, since that takes a tenth of a second;
    but not where a config refers to another key, which might be the seed.
    """

    def __init__(self, config_dir: Path | None) -> None:
        self._config_dir = config_dir
        self._composed: dict[tuple[str, ...], RunConfig] = {}

    def compose(self, words: Sequence[str], factors: Mapping[str, Any]) -> RunConfig:
        """Return the config of a cell.

        Raises:
            ConfigError: it cannot be, or is no run of its own on this machine.
        """
        but_seed = [f"{key}={show(value)}" for key, value in factors.items() if key != "seed"]
        alike = (*words, *but_seed)
        if alike in self._composed:
            return replace(self._composed[alike], seed=factors["seed"])

        jobs = compose_jobs([*alike, f"seed={factors['seed']}"], self._config_dir)
        if len(jobs.configs) > 1:
            raise ConfigError("hydra.mode", ..., "is a sweep of several runs, and a cell is one")
        if jobs.have_launcher:
            raise ConfigError("launch", ..., "must be on this machine, as a campaign is")
        if not jobs.have_references:
            self._composed[alike] = jobs.configs[0]
        return jobs.configs[0]


def _name_rows(cells: dict[str, Cell]) -> None:
    """Give configs their rows' names where rows are more than variants, of all cells or of none.

    Rows are variants where those of equal factors have one kind of attention and one size.
    """
    kinds: dict[str, Any] = {}
    for cell in cells.values():
        factors = show({key: cell.factors[key] for key in cell.factors if key not in SEEDS})
        kind = [cell.config.numeric_value(section) for section in ("attn", "model")]
        if kinds.setdefault(factors, kind) != kind:
            break
    else:
        return
    for name, cell in cells.items():
        cells[name] = replace(cell, config=replace(cell.config, row_name=cell.row))


def _check_decided(config: RunConfig, where: str) -> None:
    """Refuse a cell that leaves open what can change a number, or says where it lies."""
    for key in DECIDED:
        value = attrgetter(key)(config)
        may_vary = key == "launch.max_parallel" and config.launch.device == "cuda"
        if value in UNDECIDED and not may_vary:
            raise ConfigError(f"{where}: {key}", value, "must be fixed, as all of a campaign is")

    path = config.tokenizer.path
    is_on_hub = {
        "data.revision": config.data.kind == "hub",
        "tokenizer.revision": path is not None and not Path(path).expanduser().is_dir(),
    }
    for key, on_hub in is_on_hub.items():
        revision = attrgetter(key)(config)
        if on_hub and not re.fullmatch("[0-9a-f]{40}", revision or ""):
            raise ConfigError(f"{where}: {key}", revision, "must be a commit: a branch moves")
    origin = config.run.init_from
    if origin is not None and config.init_weights is None:
        raise ConfigError(
            f"{where}: init_weights", None, "must be the hash of what run.init_from ends with"
        )
    places = {
        "data.path": config.data.path if config.data.kind == "files" else None,
        "tokenizer.path": config.tokenizer.path,
        "run.init_from": origin,
    }
    for key, path in places.items():
        if path is not None and Path(path).expanduser().is_absolute():
            raise ConfigError(f"{where}: {key}", path, "must be relative: records are committed")

    if config.launch.inline:
        raise ConfigError(f"{where}: launch", "inline", "is for one run, and cells are several")
    if config.run != PlaceConfig(init_from=origin):
        raise ConfigError(f"{where}: run", ..., "is not for a cell, whose folder has its name")


def _check_factors(cell: Cell, key: str) -> None:
    """Refuse factors by which a table could not tell rows apart; the pilot has no such table.

    Args:
        key: of the entry that lists the cell.
    """
    for factor in cell.factors:
        if factor == "data.seed":
            allowed = f"is a factor of campaign {PILOT} alone: here a block is the runs of one seed"
            raise ConfigError(f"{key}.{factor}", ..., allowed)

        try:
            cell.config.numeric_value(factor)
        except KeyError:
            allowed = "changes no number, and no table could tell by it; it belongs in `fixed`"
            raise ConfigError(f"{key}.{factor}", ..., allowed) from None
