"""Test that records, campaigns and frozen files are what they were: cells, configs, hashes."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import joined
import pytest
import tables
from config.test_compositions import described

from rope_exp.campaign.campaign import Progress
from rope_exp.campaign.cells import load_campaign
from rope_exp.campaign.records import recorded_campaigns, stored_records
from rope_exp.files import json_sha256
from rope_exp.folder import to_config

CONFIGS = tables.PAPER / "configs"
CAMPAIGNS = sorted(path.stem for path in (CONFIGS / "campaign").glob("*.yaml"))
RUNS = Path("results/runs")
PINS = Path(__file__).parent / "compositions.json"
# Campaigns of the third protocol, and one of several kinds; others take minutes.
TRIED = ("nine_10m", "open_26m", "place_26m", "heads")


def some(names: Iterable[str], *first: str) -> list[Any]:
    """Return the names as parameters of a test, all but the first ones for `make torture`."""
    return [
        pytest.param(name, marks=() if name in first else pytest.mark.torture) for name in names
    ]


def test_what_is_frozen_is_unchanged() -> None:
    assert len(tables.frozen()) >= 218
    assert tables.changed() == []


def test_records_keep_their_identity() -> None:
    """The hashes in every record equal those of the config that it holds."""
    stored: dict[Path, bytes] = {}
    for name in recorded_campaigns(tables.RECORDS):
        stored |= stored_records(tables.RECORDS, name)
    assert len(stored) >= 1274
    for path, content in stored.items():
        record = json.loads(content)
        config = to_config(record["config"])
        for key in ("config_sha256", "group_sha256"):
            assert getattr(config, key) == record["result"][key], f"{path}: {key}"


@pytest.mark.parametrize("name", some(recorded_campaigns(tables.RECORDS), "english"))
def test_the_projects_records_are_of_their_cells(name: str) -> None:
    """Each record verifies, belongs to a cell, and has the config that the campaign gives it."""
    found = Progress(load_campaign(name, CONFIGS, RUNS), tables.RECORDS)
    assert len(found.done) == len(stored_records(tables.RECORDS, name))
    assert not found.notes()


@pytest.mark.parametrize("name", some(CAMPAIGNS, *TRIED))
def test_every_cell_is_what_it_was(name: str) -> None:
    """A hash that differs means that a file or a default changed what it says."""
    cells = load_campaign(name, CONFIGS, RUNS).cells
    # The test that the campaign's file named, before the harness had one test.
    test = "paired" if name in joined.PAIRED else None
    about = [[cell.name, cell.row, cell.factors, test] for cell in cells]
    sha256 = json_sha256([about, list(described(cell.config for cell in cells))])
    assert sha256 == json.loads(PINS.read_text())["campaigns"][name]
