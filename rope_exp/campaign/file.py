"""Parser of a campaign's file, configs/campaign/NAME.yaml (docs/extending.md).

If several overrides set a key, the last one wins: `fixed`, an entry's, the row's, the sweep's.
"""

import functools
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from pydantic import BaseModel, BeforeValidator, Field

from rope_exp.compose import CAMPAIGNS, CONFIGS, split
from rope_exp.errors import ConfigError, first_line
from rope_exp.folder import Test
from rope_exp.identity import Name, convert


class Entry(BaseModel, strict=True, extra="forbid"):
    """One of the file's `cells`: a line of overrides with all their values, and fixed ones."""

    sweep: str
    fixed: list[str] = []

    def cells(self, rows: Iterable[str]) -> list[dict[str, Override]]:
        """Return the row (one of `rows`, if the entry names none) and the factors of each cell."""
        parse = OverridesParser.create().parse_overrides
        words = shlex.split(self.sweep)
        if not any(word.startswith("row=") for word in words):
            names = ",".join(f"'{row}'" for row in rows)
            words.append(f"row={names}")

        # Jobs share their words, and each takes a millisecond to parse.
        parsed = functools.cache(lambda word: parse([word])[0])
        return [
            {override.get_key_element(): override for override in map(parsed, job)}
            for job in split(parse(words))
        ]


def _to_rows(rows: Any) -> Any:
    return {str(name): [f"pe={name}"] for name in rows} if isinstance(rows, list) else rows


def _to_entry(entry: Any) -> Any:
    return {"sweep": entry} if isinstance(entry, str) else entry


class CampaignFile(BaseModel, strict=True, extra="forbid"):
    """The content of a campaign's file; `test` is the rule of docs/paper/protocol-2.md, or None."""

    about: str = ""
    python: str | None = None
    test: Test | None = None
    fixed: list[str] = []
    rows: Annotated[dict[Name, list[str]], BeforeValidator(_to_rows), Field(min_length=1)]
    cells: Annotated[list[Annotated[Entry, BeforeValidator(_to_entry)]], Field(min_length=1)]


def read_campaign(name: str, config_dir: Path | None) -> CampaignFile:
    """Read a campaign's file; refuse one that does not exist or is malformed."""
    files = campaign_files(config_dir)
    if name not in files:
        reason = f"there is no such campaign; there is {', '.join(files)}"
        raise ConfigError("campaign", name, reason)
    try:
        content = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # A ValueError comes from text that is not UTF-8, or from an invalid date or number.
        raise ConfigError(str(files[name]), ..., f"cannot be read: {first_line(error)}") from error
    campaign: CampaignFile = convert(CampaignFile, content, f"{CAMPAIGNS}/{name}")
    return campaign


def campaign_files(config_dir: Path | None = None) -> dict[str, Path]:
    """Return the file of each campaign by name; a user's own take precedence over ours."""
    ours = (CONFIGS / CAMPAIGNS).glob("*.yaml")
    theirs = ((config_dir or CONFIGS) / CAMPAIGNS).glob("*.yaml")
    return dict(sorted({path.stem: path for path in (*ours, *theirs)}.items()))
