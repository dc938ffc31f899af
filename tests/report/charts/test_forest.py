"""Tests that the forest shows the numbers and verdicts of the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.charts import domain, explanation, parts, records, words
from support.reports import make_run, report_of

from rope_exp.evidence.published import TABLE
from rope_exp.report.charts.forest import forest
from rope_exp.report.charts.svg import CONFIG, svg_of
from rope_exp.report.content import Report
from rope_exp.report.tables import WORDS


def lines(chart: Any) -> dict[str, dict[str, Any]]:
    """Return the numbers and words of each row."""
    return {line["label"]: line for line in records(chart, "difference")}


def bars(chart: Any) -> dict[tuple[str, str], list[float]]:
    """Return the ends of each interval, by row and kind."""
    return {
        (bar["label"], bar["kind"]): [bar["low"], bar["high"]] for bar in records(chart, "kind")
    }


def test_the_forest_draws_what_was_judged(report: Report) -> None:
    chart = forest(report)
    assert set(report.against) == {"qkvo_rope", "vo_rope", "k_rope", "qv_rope"}
    for label, judged in report.against.items():
        assert lines(chart)[label]["delta"] == judged.delta
        assert bars(chart)[label, "alone"] == [judged.low, judged.high]
        assert bars(chart)[label, "family"] == [judged.wide_low, judged.wide_high]
    assert {"low": -0.01, "high": 0.01} in list(parts(chart.to_dict()))


def test_rows_are_in_the_order_of_the_report(report: Report) -> None:
    """Without an explicit domain, rows would follow the order of the layers' data."""
    labels = [label for label in report.rows if label != report.reference.label]
    chart = forest(report)
    assert domain(chart, "label") == labels
    said = words(chart)
    places = [said.index(report.rows[label].name) for label in labels]
    assert places == sorted(places)


def test_a_bar_is_as_long_as_its_interval(report: Report) -> None:
    """A projecting line cap would extend past the interval, and might cross 0."""
    assert CONFIG["rule"]["strokeCap"] == "butt"
    svg = svg_of(forest(report).to_dict()).decode()
    assert 'linecap="square"' not in svg
    assert 'linecap="round"' not in svg


def test_intervals_are_of_the_tables_own_test(tmp_path: Path) -> None:
    """The interval of one difference lies inside that of all: both come from one test."""
    losses_VS = 3.5 + np.random.default_rng(1).normal(scale=0.02, size=(4, 5))
    for pe, losses in zip(("qk_rope", "qkvo_rope", "vo_rope", "k_rope"), losses_VS, strict=True):
        for seed, loss in enumerate(losses):
            make_run(tmp_path, pe=pe, seed=seed, loss=float(loss))
    pooled = report_of(tmp_path)
    assert pooled.is_pooled
    for name, each in (("pooled", pooled), ("paired", pooled.alone)):
        chart = forest(each)
        judged = each.against["vo_rope"]
        assert bars(chart)["vo_rope", "alone"] == [judged.low, judged.high]
        assert f"[{judged.low:+.4f}".replace("-", "−") in lines(chart)["vo_rope"]["difference"]
        assert f"Thick: 95 % interval of the {name} t test" in explanation(chart)


def test_the_forest_says_seeds_and_published_and_no_verdict(report: Report) -> None:
    """A verdict by Holm's rule may differ from what a bar by Bonferroni's shows."""
    chart = forest(report)
    judged = report.against["k_rope"]
    spelled = f"{judged.delta:+.4f} [{judged.low:+.4f}, {judged.high:+.4f}]"
    assert lines(chart)["k_rope"]["difference"] == spelled.replace("-", "−")
    assert not set(WORDS.values()) & set(words(chart))
    assert {"diverged", "3", "1"} <= set(words(chart))
    assert f"{TABLE.losses['k_rope'] - TABLE.losses['qk_rope']:+.3f}" in words(chart)


def test_a_row_without_an_interval_has_a_dot_or_a_word(report: Report) -> None:
    chart = forest(report)
    assert lines(chart)["o_rope"]["delta"] == report.rows["o_rope"].ours.delta
    assert lines(chart)["v_rope"]["delta"] is None
    assert lines(chart)["v_rope"]["verdict"] == "diverged"
    assert {label for label, _ in bars(chart)} == set(report.against)


def test_a_noisy_row_leaves_the_others_readable(report: Report) -> None:
    """The noisy row's interval is cut off at the limits of the axis, and arrows mark this."""
    chart = forest(report)
    low, high = domain(chart, "delta")
    judged = report.against["vo_rope"]
    assert judged.wide_low < low
    assert judged.wide_high > high
    assert "Arrow: the interval extends further." in explanation(chart)
    filters = {str(each["filter"]) for each in parts(chart.to_dict()) if "filter" in each}
    assert any(f"datum.low < {low}" in each for each in filters)
    assert any(f"datum.high > {high}" in each for each in filters)


def test_one_seed_has_dots_beside_the_published_and_no_interval(tmp_path: Path) -> None:
    for pe, loss in {"qk_rope": 3.5, "vo_rope": 3.53, "pe.rotate=[q,v]": 3.4}.items():
        make_run(tmp_path, pe=pe, loss=loss)
    chart = forest(report_of(tmp_path))

    assert lines(chart)["vo_rope"]["delta"] == pytest.approx(0.03)
    published = TABLE.losses["vo_rope"] - TABLE.losses["qk_rope"]
    assert lines(chart)["vo_rope"]["theirs"] == pytest.approx(published)
    assert lines(chart)["qv_rope"]["theirs"] is None
    assert bars(chart) == {}
    assert "so nothing can be tested" in explanation(chart)
    assert "arrow" not in explanation(chart)


def test_what_nobody_published_has_no_column_for_it(tmp_path: Path) -> None:
    for name in ("published", "own"):
        make_run(tmp_path / name, pe="qk_rope", loss=3.5)
    make_run(tmp_path / "published", pe="nope", loss=3.6)
    make_run(tmp_path / "own", pe="pe.rotate=[q,v]", loss=3.4)
    assert "published" in words(forest(report_of(tmp_path / "published")))
    assert "published" not in words(forest(report_of(tmp_path / "own")))


def test_a_forest_needs_the_reference_and_a_row_beside_it(tmp_path: Path) -> None:
    make_run(tmp_path / "alone", loss=3.5)
    assert forest(report_of(tmp_path / "alone")) is None
    for pe in ("vo_rope", "nope"):
        make_run(tmp_path / "without", pe=pe)
    assert forest(report_of(tmp_path / "without")) is None


def test_seeds_say_how_many_runs_diverged(partly: Report) -> None:
    chart = forest(partly)
    seeds = {label: line["seeds"] for label, line in lines(chart).items()}
    assert seeds == {"qkvo_rope": "4", "k_rope": "2 (2 diverged)", "vo_rope": "1 (3 diverged)"}
    verdicts = {label: line["verdict"] for label, line in lines(chart).items()}
    assert verdicts["k_rope"] == f"{WORDS[partly.against['k_rope'].verdict]} (2 diverged)"
    assert verdicts["qkvo_rope"] == WORDS[partly.against["qkvo_rope"].verdict]
    assert verdicts["vo_rope"] == "untested (3 diverged)"
    assert "The reference: QK-RoPE (1 diverged)." in explanation(chart)


def test_diverged_seeds_move_the_column_behind_them(report: Report, partly: Report) -> None:
    """The columns move so that no words overlap."""
    places = {}
    for name, each in (("short", report), ("long", partly)):
        spec = list(parts(forest(each).to_dict()))
        found = [layer for layer in spec if layer.get("mark") and _text(layer) == "published"]
        places[name] = found[0]["encoding"]["x"]["value"]
    assert places["long"] > places["short"]


def _text(layer: dict[str, Any]) -> Any:
    return layer["encoding"].get("text", {}).get("field") if "encoding" in layer else None
