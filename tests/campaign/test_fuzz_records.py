"""Fuzz test of records: any content with a valid digest is judged, or refused by name."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.configs import RECORDED
from support.harm import HARMS, Place, places, with_harm
from support.reports import judge

from rope_exp.campaign.records import digest, read_record, stored_records
from rope_exp.errors import ConfigError, RunFolderError
from rope_exp.files import json_sha256

# Records of one table. The test damages the first.
CELLS = ("qk_rope-s0", "qk_rope-s1", "nope-s0", "nope-s1")


def harm_of(record: dict[str, Any], place: Place, harm: Any) -> str:
    """Return the text of a record with one value replaced or removed, and valid digests."""
    values = with_harm(record, place, harm)
    if harm == harm:
        if place[0] == "probes" and isinstance(values["result"].get("probes_sha256"), str):
            values["result"]["probes_sha256"] = json_sha256(values.get("probes"))
        values["sha256"] = digest(values)
    return json.dumps(values)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_a_harmed_record_is_judged_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    """An eighth of the places get one of HARMS; the torture test tries all of them everywhere."""
    # Figures are built, but not drawn, which takes most of the time.
    monkeypatch.setattr("rope_exp.svg.drawn", lambda draw, report: draw(report) and None)
    stored = {path.stem: each for path, each in stored_records(RECORDED, "english").items()}
    first, *others = CELLS
    clean = [read_record(tmp_path / "english" / f"{cell}.json", stored[cell]) for cell in others]
    record = json.loads(stored[first])
    del record["sha256"]
    path = tmp_path / "english" / f"{first}.json"
    path.parent.mkdir()

    harmed = [*places(record)]
    few = list(zip(harmed, itertools.cycle(HARMS)))[::8]
    tried = [*itertools.product(harmed, HARMS)] if every else few
    num_refused = 0
    for place, harm in tried:
        path.write_text(harm_of(record, place, harm))
        try:
            judge([read_record(path), *clean])
        except (RunFolderError, ConfigError) as error:
            assert "\n" not in str(error)
            num_refused += 1
        except Exception as error:
            raise AssertionError(f"{place} <- {harm!r}") from error
    assert num_refused > len(tried) / (2 if every else 4)
