"""Tests of all figures: reproducible bytes, page width, and none if data are missing."""

from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from support.figures import asked
from support.records import make_records
from support.reports import make_run, report_of

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.content import build
from rope_exp.report.paper.drift import drift
from rope_exp.report.paper.gather import of_report
from rope_exp.report.paper.style import WIDTH, files_of, seeds, shades

ROWS = ("qk_rope", "vo_rope", "nope")
DRIFTED = asked({"a": [{"sites": {"qk": {"theta0": [1.0, 0.1], "theta": [[1.1, 0.1]]}}}]})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    records = tmp_path_factory.mktemp("records")
    make_records(records, "c", rows=ROWS, seeds=(0, 1))
    return read_records(records, "c")


def drawn(runs: list[Run]) -> dict[str, bytes]:
    return of_report(build(runs, ["pe"])) | files_of("drift", drift(DRIFTED))


def test_files_have_the_same_bytes_again_and_no_date(runs: list[Run]) -> None:
    """The order of runs does not matter. matplotlib's text is paths, its width 6.75 inches."""
    files = drawn(runs)
    assert files == drawn(runs[::-1])

    names = {"forest", "curves", "probes", "grid", "drift"}
    assert set(files) == {f"figures/{name}.svg" for name in names}
    content = files["figures/drift.svg"]
    width = ElementTree.fromstring(content).attrib["width"].removesuffix("pt")
    assert float(width) == pytest.approx(72 * WIDTH, abs=0.1)
    assert b"<text" not in content
    assert matplotlib.__version__.encode() not in content
    assert b"<dc:date>" not in content


def test_one_run_alone_leaves_out_what_it_cannot_show(tmp_path: Path) -> None:
    make_run(tmp_path, pe="vo_rope")
    assert {Path(name).stem for name in of_report(report_of(tmp_path))} == {"curves"}


@pytest.mark.parametrize("steps", [0, 20])
def test_a_run_that_has_hardly_begun_draws_nothing(tmp_path: Path, steps: int) -> None:
    make_run(tmp_path, loss=None, steps=steps)
    assert of_report(report_of(tmp_path)) == {}


def test_no_figure_is_no_file() -> None:
    assert files_of("x", None) == {}


def test_a_users_style_changes_nothing() -> None:
    before = files_of("x", drift(DRIFTED))
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "none"}):
        assert files_of("x", drift(DRIFTED)) == before


def test_shades_go_from_pale_to_dark_in_grey() -> None:
    greys = [0.3 * red + 0.59 * green + 0.11 * blue for red, green, blue, _ in shades(16)]
    assert greys == sorted(set(greys), reverse=True)
    assert greys[0] < 0.85
    assert shades(1) == shades(5)[-1:]


def test_numbers_of_seeds_are_spelled() -> None:
    assert [seeds([1, 1]), seeds([5, 1, 3]), seeds([2])] == ["one seed", "1 to 5 seeds", "2 seeds"]
