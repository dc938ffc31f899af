"""Tests that the grid shows the report's numbers, each at the place of its sites."""

from pathlib import Path
from typing import Any

from support.charts import domain, parts, records, words
from support.reports import make_run, report_of

from rope_exp.report.charts.grid import grid
from rope_exp.report.content import Report
from rope_exp.report.tables import WORDS


def cells(chart: Any) -> dict[str, dict[str, Any]]:
    return {cell["label"]: cell for cell in records(chart, "scores")}


def minus(text: str) -> str:
    return text.replace("-", "−")


def test_a_cell_holds_its_difference_and_the_published(report: Report) -> None:
    found = cells(grid(report))
    for label in ("qkvo_rope", "vo_rope", "k_rope", "o_rope", "qv_rope"):
        row = report.rows[label]
        assert found[label]["number"] == minus(f"{row.ours.delta:+.4f}")
        theirs = row.theirs.delta
        assert found[label]["published"] == ("" if theirs is None else minus(f"{theirs:+.3f}"))
    reference = found["qk_rope"]
    assert [reference[key] for key in ("number", "below", "published")] == ["0", "reference", ""]


def test_a_cell_has_half_of_the_tables_interval(report: Report) -> None:
    found = cells(grid(report))
    for label, judged in report.against.items():
        half = f"± {judged.high - judged.delta:.4f}"
        assert found[label]["below"] == f"{half} {WORDS[judged.verdict]}"
    assert found["o_rope"]["below"] == "untested"


def test_a_cell_stands_where_its_sites_say(report: Report) -> None:
    """Rows are none, Q, K and QK from the top; columns are none, V, O and VO."""
    chart = grid(report)
    assert domain(chart, "scores") == ["none", "Q", "K", "QK"]
    assert domain(chart, "values") == ["none", "V", "O", "VO"]
    places = {"vo_rope": ("none", "VO"), "k_rope": ("K", "none"), "qv_rope": ("Q", "V")}
    for label, place in places.items():
        cell = cells(chart)[label]
        assert (cell["scores"], cell["values"]) == place


def test_colours_diverge_at_0(report: Report) -> None:
    """Equal differences of opposite sign are equally far from the middle, in two hues."""
    chart = grid(report)
    low, high = domain(chart, "delta")
    assert low == -high
    assert high == max(abs(cell["delta"] or 0) for cell in cells(chart).values())
    schemes = [each["scheme"] for each in parts(chart.to_dict()) if "scheme" in each]
    assert schemes == ["blueorange"]


def test_a_table_of_equal_rows_is_pale(tmp_path: Path) -> None:
    """The colour scale extends at least to the margin, so small differences stay pale."""
    for pe, loss in {"qk_rope": 3.5, "vo_rope": 3.501}.items():
        make_run(tmp_path, pe=pe, loss=loss)
    assert domain(grid(report_of(tmp_path)), "delta") == [-0.01, 0.01]


def test_what_did_not_run_is_an_empty_cell(report: Report) -> None:
    chart = grid(report)
    assert len(cells(chart)) == len(report.rows) < 16
    assert cells(chart)["v_rope"]["delta"] is None
    assert "diverged" in words(chart)


def test_a_cell_says_how_many_runs_it_is_without(partly: Report) -> None:
    found = {label: cell["below"] for label, cell in cells(grid(partly)).items()}
    word = WORDS[partly.against["k_rope"].verdict]
    assert found["k_rope"].startswith("± ")
    assert found["k_rope"].endswith(f"{word}\n(2 diverged)")
    assert found["qk_rope"] == "reference\n(1 diverged)"
    assert found["vo_rope"] == "untested\n(3 diverged)"


def test_a_grid_needs_the_reference(tmp_path: Path) -> None:
    make_run(tmp_path, pe="vo_rope")
    assert grid(report_of(tmp_path)) is None
