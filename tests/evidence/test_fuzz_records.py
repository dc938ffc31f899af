"""Fuzz test of records: any content with a valid digest is judged, or refused by name."""

import copy
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.configs import RECORDED

from rope_exp.evidence.records import digest, read_record
from rope_exp.evidence.runs import Run
from rope_exp.report.answers import answers_csv
from rope_exp.report.content import build
from rope_exp.report.page import PARTS, page
from rope_exp.report.probed import extension_csv, probes_csv
from rope_exp.report.sentences import summary
from rope_exp.report.tables import csv_table, markdown
from rope_exp.studies import cost
from rope_exp.system.errors import ConfigError, RecordError
from rope_exp.system.files import read_json

GONE = object()
HARMS = (None, "x", [], -1, float("nan"), 1e308, 10**30, True, GONE)

# Records of one campaign. The test damages the first.
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
    inner: Any = values
    for key in above:
        inner = inner[key]
    if harm is GONE:
        del inner[last]
    else:
        inner[last] = harm
    if harm == harm:
        values["sha256"] = digest(values)
    return json.dumps(values)


def judge(runs: Sequence[Run]) -> None:
    """Build every output that a campaign's records give, except figures."""
    report = build(runs, ["pe"])
    markdown(report, [])
    for write in (csv_table, summary, answers_csv, probes_csv, extension_csv):
        write(report)
    page({"english": report}, runs)
    cost.files(["english"], {"english": runs}, {})


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures out of the page, because they take most of the time."""
    for figure in ("forest", "grid", "curves"):
        monkeypatch.setitem(PARTS, figure, lambda report: None)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.torture)])
@pytest.mark.usefixtures("undrawn")
def test_a_harmed_record_is_judged_or_refused(tmp_path: Path, every: bool) -> None:
    """Each place gets one of HARMS in turn; the torture test tries all of them at each place.

    Answers to probes are left out: a newer result has a digest of them, which refuses any change.
    """
    first, *others = (RECORDED / f"english/{cell}.json" for cell in CELLS)
    clean = [read_record(path) for path in others]
    record = read_json(first)
    del record["sha256"]
    path = tmp_path / "english" / first.name
    path.parent.mkdir()

    found = [each for each in places(record) if each[0] != "probes"]
    chosen = zip(found, itertools.cycle(HARMS))
    num_refused = 0
    for place, harm in itertools.product(found, HARMS) if every else chosen:
        path.write_text(harm_of(record, place, harm))
        try:
            judge([read_record(path), *clean])
        except (RecordError, ConfigError) as error:
            assert "\n" not in str(error)
            num_refused += 1
        except Exception as error:
            raise AssertionError(f"{place} <- {harm!r}") from error
    assert num_refused > len(found) / 2
