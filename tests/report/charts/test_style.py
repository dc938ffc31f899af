"""Tests of chart files: reproducible bytes, readable text, and none without a chart."""

from xml.etree import ElementTree

import pytest
from support.charts import WIDEST, width
from support.records import make_records

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.charts.curves import curves
from rope_exp.report.charts.forest import forest
from rope_exp.report.charts.grid import grid
from rope_exp.report.charts.style import limits
from rope_exp.report.charts.svg import svg_of
from rope_exp.report.content import build


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    records = tmp_path_factory.mktemp("records")
    make_records(records, "c", rows=("qk_rope", "vo_rope", "nope"), seeds=(0, 1))
    return read_records(records, "c")


def test_files_have_the_same_bytes_again(runs: list[Run]) -> None:
    """The order of runs and charts does not matter, although Vega numbers its parts."""
    first = {draw: svg_of(draw(build(runs, ["pe"])).to_dict()) for draw in (forest, grid, curves)}
    for draw in (curves, grid, forest):
        assert svg_of(draw(build(runs[::-1], ["pe"])).to_dict()) == first[draw]


def test_files_are_readable_on_a_page(runs: list[Run]) -> None:
    report = build(runs, ["pe"])
    for draw in (forest, grid, curves):
        assert width(draw(report)) <= WIDEST


def test_every_id_is_used_and_defined_once(runs: list[Run]) -> None:
    svg = ElementTree.fromstring(svg_of(curves(build(runs, ["pe"])).to_dict()))
    defined = [each.attrib["id"] for each in svg.iter() if "id" in each.attrib]
    named = [value for each in svg.iter() for value in each.attrib.values() if "url(#" in value]
    assert len(defined) == len(set(defined))
    assert {value.partition("#")[2].rstrip(")") for value in named} <= set(defined)


def test_limits_leave_the_means_readable_beside_a_wide_interval() -> None:
    """Means take at least half of the axis; a narrow interval is shown whole."""
    low, high = limits([0.1, 0.4], [-9.0, 9.0])
    assert (0.4 - 0.0) / (high - low) > 0.45
    low, high = limits([0.1, 0.4], [0.38, 0.42])
    assert low < 0 < 0.42 < high < 0.45
    low, high = limits([])
    assert low < -0.001 < 0.001 < high
