"""Fuzz test of records: any content with a valid digest is judged, or refused by name."""

import copy
import functools
import itertools
import json
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.configs import RECORDED

from rope_exp.campaign.records import digest, read_record, stored_records
from rope_exp.comparable import row_factors
from rope_exp.errors import ConfigError, RecordError
from rope_exp.folder import Run
from rope_exp.page import page
from rope_exp.report import build, parts, table_csv, table_md

GONE = object()
HARMS = (None, "x", [], -1, float("nan"), 1e308, 10**30, True, GONE)

# Records of one table. The test damages the first.
CELLS = ("qk_rope-s0", "qk_rope-s1", "nope-s0", "nope-s1")

Place = tuple[str | int, ...]


def places(values: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of each value; the last item of a list represents all of it."""
    if at:
        yield at
    if isinstance(values, dict):
        for key, below in values.items():
            yield from places(below, (*at, key))
    elif isinstance(values, list) and values:
        yield from places(values[-1], (*at, len(values) - 1))


def harm_of(record: dict[str, Any], place: Place, harm: Any) -> str:
    """Return the text of a record with one value replaced or removed, and a recomputed digest."""
    values = copy.deepcopy(record)
    *above, last = place
    inner: Any = functools.reduce(operator.getitem, above, values)
    inner[last] = harm
    if harm is GONE:
        del inner[last]
    if harm == harm:
        values["sha256"] = digest(values)
    return json.dumps(values)


def judge(runs: Sequence[Run]) -> None:
    """Build every output that a campaign's records give, except images."""
    report = build(runs, row_factors(runs))
    table_md(report)
    table_csv(report)
    for _, part in parts("notes", "probes"):
        part.files(report)
    assert not report.charts
    page({runs[0].group: report}, runs)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_a_harmed_record_is_judged_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    """An eighth of the places get one of HARMS; the torture test tries all of them at each place.

    Answers to probes are left out: their digest alone protects them.
    """
    # Figures are built, but not drawn, which takes most of the time.
    monkeypatch.setattr("rope_exp.svg.drawn", lambda draw, report: draw(report) and None)
    stored = {path.stem: each for path, each in stored_records(RECORDED, "english").items()}
    first, *others = CELLS
    clean = [read_record(tmp_path / "english" / f"{cell}.json", stored[cell]) for cell in others]
    record = json.loads(stored[first])
    del record["sha256"]
    path = tmp_path / "english" / f"{first}.json"
    path.parent.mkdir()

    harmed = [place for place in places(record) if place[0] != "probes"]
    few = list(zip(harmed, itertools.cycle(HARMS)))[::8]
    tried = [*itertools.product(harmed, HARMS)] if every else few
    num_refused = 0
    for place, harm in tried:
        path.write_text(harm_of(record, place, harm))
        try:
            judge([read_record(path), *clean])
        except (RecordError, ConfigError) as error:
            assert "\n" not in str(error)
            num_refused += 1
        except Exception as error:
            raise AssertionError(f"{place} <- {harm!r}") from error
    assert num_refused > len(tried) / (2 if every else 4)
