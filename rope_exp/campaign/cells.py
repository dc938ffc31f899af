"""A campaign: many runs that answer one question, listed in configs/campaign/NAME.yaml.

If several overrides set a key, the last one wins: `fixed`, an entry's, the row's, the sweep's.
"""

import functools
import platform
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from pydantic import BaseModel, BeforeValidator, Field

from rope_exp import compose
from rope_exp.campaign.records import cell_name
from rope_exp.comparable import ORDER, SEEDS
from rope_exp.config import RunConfig, check_group
from rope_exp.errors import ConfigError, first_line, show
from rope_exp.files import read_bytes
from rope_exp.identity import Refusal, convert, refuse
from rope_exp.sections import Name, Natural


class Entry(BaseModel, strict=True, extra="forbid"):
    """One of the file's `cells`: a line of overrides with all their values, and fixed ones."""

    sweep: str
    fixed: list[str] = []

    def cells(self, rows: Iterable[str]) -> list[dict[str, Override]]:
        """Return the row (one of `rows`, if the entry names none) and the factors of each cell."""
        parse = OverridesParser.create().parse_overrides
        texts = shlex.split(self.sweep)
        if not any(text.startswith("row=") for text in texts):
            names = ",".join(f"'{row}'" for row in rows)
            texts.append(f"row={names}")

        # Cells share their overrides, and each takes a millisecond to parse.
        parsed = functools.cache(lambda text: parse([text])[0])
        cells = []
        for run in compose.split(parse(texts)):
            overrides = map(parsed, run)
            cells.append({override.get_key_element(): override for override in overrides})
        return cells


def _to_rows(rows: Any) -> Any:
    return {str(name): [f"pe={name}"] for name in rows} if isinstance(rows, list) else rows


def _to_entry(entry: Any) -> Any:
    return {"sweep": entry} if isinstance(entry, str) else entry


class CampaignFile(BaseModel, strict=True, extra="forbid"):
    """The content of a campaign's file."""

    about: str = ""
    python: str | None = None
    fixed: list[str] = []
    rows: Annotated[dict[Name, list[str]], BeforeValidator(_to_rows), Field(min_length=1)]
    cells: Annotated[list[Annotated[Entry, BeforeValidator(_to_entry)]], Field(min_length=1)]


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, where YAML's own loader takes the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            if key.value in seen:
                problem = f"{key.value} is there twice, again in line {key.start_mark.line + 1}"
                raise yaml.constructor.ConstructorError(problem=problem)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_campaign(name: str, config_dir: Path | None) -> CampaignFile:
    """Read a campaign's file; refuse one that does not exist or is malformed."""
    files = campaign_files(config_dir)
    if name not in files:
        known = ", ".join(files) or "none; --config-dir names a folder of further configs"
        reason = f"there is no such campaign; there is {known}"
        raise ConfigError("campaign", name, reason)
    try:
        content = yaml.load(read_bytes(files[name]).decode(), _UniqueKeys)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # A ValueError comes from text that is not UTF-8, or from an invalid date or number.
        raise ConfigError(str(files[name]), ..., f"cannot be read: {first_line(error)}") from error
    return convert(CampaignFile, content, f"{compose.CAMPAIGNS}/{name}")


def campaign_files(config_dir: Path | None = None) -> dict[str, Path]:
    """Return the file of each campaign by name; a user's own take precedence over ours."""
    ours = (compose.CONFIGS / compose.CAMPAIGNS).glob("*.yaml")
    theirs = ((config_dir or compose.CONFIGS) / compose.CAMPAIGNS).glob("*.yaml")
    return dict(sorted({path.stem: path for path in (*ours, *theirs)}.items()))


# -- cells -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One run of a campaign; its record and its run's folder have its name."""

    name: str
    row: str
    factors: Mapping[str, Any]
    config: RunConfig


@dataclass(frozen=True)
class Campaign:
    """The content of configs/campaign/NAME.yaml, with cells in the order of their runs."""

    name: str
    about: str
    python: str | None
    cells: Sequence[Cell]
    config_dir: Path | None = None  # a further folder of configs that it was read with

    def with_launch(self, **launch: Any) -> "Campaign":
        """Return the campaign with other values of `launch` in every cell."""
        cells = []
        for cell in self.cells:
            config = cell.config.replace("launch", **launch)
            cells.append(replace(cell, config=config))
        return replace(self, cells=cells)


def load_campaign(name: str, config_dir: Path | None, runs: Path) -> Campaign:
    """Read a campaign and compose every cell of it.

    Args:
        name: the name of its file, without the ending.
        config_dir: a further folder of configs, whose campaigns take precedence. None: no other.
        runs: the folder of all groups; the cells' runs lie in <runs>/<name>.
    Returns:
        The campaign, with cells seed by seed, and the longest first within a seed.
    Raises:
        ConfigError: there is no such file, it is malformed, or one of its cells is wrong.
    """
    file = read_campaign(name, config_dir)
    # Records and folders have this name.
    check_group("campaign", convert(Name, name, "campaign"))
    # Cells that differ only in their seed are composed once: each takes a tenth of a second.
    compose_once = functools.cache(functools.partial(compose.compose_runs, config_dir=config_dir))
    # Imported where it is needed: it takes torch.
    from rope_exp.costs import operations

    listed: dict[str, tuple[tuple[int, int], str, Cell]] = {}
    for number, entry in enumerate(file.cells):
        where = f"{compose.CAMPAIGNS}/{name}.cells.{number}"
        with _within(where):
            seeds: dict[Any, int] = {}
            for overrides in entry.cells(file.rows):
                cell = _cell(overrides, entry, file, runs / name, compose_once)
                if cell.name in listed:
                    raise ConfigError(cell.name, ..., "is listed twice")
                place = seeds.setdefault(tuple(map(cell.factors.get, SEEDS)), len(seeds))
                listed[cell.name] = (place, -operations(cell.config)), where, cell

    # Seed by seed, and longest first within a seed, so that a partial campaign is balanced and
    # the last run to end is a short one.
    cells = [cell for _, _, cell in sorted(listed.values(), key=itemgetter(0))]
    # A campaign that varies the order of tokens in every cell makes no table.
    if not all(ORDER in cell.factors for cell in cells):
        for _, where, cell in listed.values():
            with _within(where):
                _check_factors(cell)
    if file.python is None and any(cell.config.data.kind == "stdlib" for cell in cells):
        key = f"{compose.CAMPAIGNS}/{name}.python"
        reason = "is missing: the stdlib corpus is the library of one Python, such as python: "
        raise ConfigError(key, ..., f"{reason}{platform.python_version()}")
    return Campaign(name, file.about, file.python, _named(cells), config_dir)


@contextmanager
def _within(where: str) -> Iterator[None]:
    """Prefix errors of a config or of Hydra with their place in the campaign."""
    try:
        yield
    except (ConfigError, HydraException, ValueError) as error:
        key, value, reason = compose.to_config_error(error).args
        raise ConfigError(f"{where}: {key}", value, reason) from error


def _cell(
    overrides: Mapping[str, Override],
    entry: Entry,
    file: CampaignFile,
    runs: Path,
    compose_once: Callable[[tuple[str, ...]], compose.Composed],
) -> Cell:
    """Compose one cell from its row and its factors; `runs` is the folder of all cells."""
    factors = {key: override.value() for key, override in overrides.items()}
    row = str(factors.pop("row"))
    if row not in file.rows:
        raise ConfigError("row", row, f"must be one of {', '.join(file.rows)}")
    for override in file.rows[row]:
        key = override.partition("=")[0]
        if key in factors:
            raise ConfigError(key, ..., f"is what row {row} says itself")

    seed = convert(Natural, factors.get("seed", ...), "seed")
    name = cell_name(row, factors)
    with _within(name):
        swept = [str(overrides[key].input_line) for key in factors if key != "seed"]
        # The last override of a key wins.
        texts = (*file.fixed, *entry.fixed, *file.rows[row], *swept)
        composed = compose_once(texts)
        if "${" in str(OmegaConf.to_container(compose.without_hydra(composed.tree))):
            # A reference may be to the seed.
            composed = compose_once((*texts, f"seed={seed}"))
        if len(composed.configs) > 1:
            raise ConfigError("hydra.mode", ..., "is a sweep of several runs, and a cell is one")
        if not re.search("basic_launcher|rope_exp", composed.tree.hydra.launcher._target_):
            raise ConfigError("launch", ..., "is given to `rope-exp campaign NAME launch=...`")

        config = replace(composed.configs[0], seed=seed)
        refuse(config, _refusals(config))
        config = config.replace("run", dir=str(runs / name))
    return Cell(name, row, factors, config)


def _named(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells, with `row_name` in all configs if rows differ in more than the variant.

    Otherwise no config has it. Rows are mere variants if those of equal factors have the same
    attention and the same size, and no two of them the same variant.
    """
    kinds: dict[str, Any] = {}
    rows: dict[tuple[str, str], str] = {}
    for cell in cells:
        factors = show({key: cell.factors[key] for key in cell.factors if key not in SEEDS})
        kind = [cell.config.affecting_value(section) for section in ("attn", "model")]
        row = rows.setdefault((factors, cell.config.pe.label), cell.row)
        if kinds.setdefault(factors, kind) != kind or row != cell.row:
            return [_with_row_name(cell, cell.row) for cell in cells]
    # Some rows may name themselves; a table needs the name of every row, or of none.
    if len({cell.config.row_name is None for cell in cells}) > 1:
        return [_with_row_name(cell, None) for cell in cells]
    return cells


def _with_row_name(cell: Cell, row_name: str | None) -> Cell:
    return replace(cell, config=replace(cell.config, row_name=row_name))


def _refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield what a cell may not leave open, because it can change a number, or set itself."""
    for section in ("train", "launch"):
        for key, value in vars(getattr(config, section)).items():
            # Left open, the machine would decide a number, or how many cores a cell gets. On a GPU
            # max_parallel decides neither.
            may_vary = key == "max_parallel" and config.launch.device == "cuda"
            if value in ("auto", "all") and not may_vary:
                yield Refusal(f"{section}.{key}", "must be fixed, as all of a campaign is")

    data = config.data
    tokenizer = config.tokenizer
    is_commit = re.compile("[0-9a-f]{40}").fullmatch
    must_be_commit = "must be a commit: a branch moves"
    if data.kind == "hub" and not is_commit(data.revision or ""):
        yield Refusal("data.revision", must_be_commit)
    is_from_hub = tokenizer.path and not Path(tokenizer.path).expanduser().is_dir()
    if is_from_hub and not is_commit(tokenizer.revision or ""):
        yield Refusal("tokenizer.revision", must_be_commit)
    if config.run.init_from is not None and config.init_weights is None:
        yield Refusal("init_weights", "must be the hash of what run.init_from ends with")
    for key in ("data.path", "tokenizer.path", "run.init_from"):
        if Path(attrgetter(key)(config) or "").expanduser().is_absolute():
            yield Refusal(key, "must be relative: records are committed")
    for key in ("run.dir", "run.group"):
        if attrgetter(key)(config):
            yield Refusal(key, "is not for a cell, whose folder has its name")


def _check_factors(cell: Cell) -> None:
    """Refuse factors that cannot distinguish rows in a table."""
    if ORDER in cell.factors:
        reason = "must be a factor of every cell or of none: a table's block is the runs of a seed"
        raise ConfigError(ORDER, ..., reason)
    for factor in cell.factors:
        try:
            cell.config.affecting_value(factor)
        except (KeyError, TypeError):
            reason = "changes no number, and no table could tell by it; it belongs in `fixed`"
            raise ConfigError(factor, ..., reason) from None
