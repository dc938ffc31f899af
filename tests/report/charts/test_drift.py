"""Tests of the figure of learned frequencies: their log ratios, and the median magnitude."""

import math
from typing import Any

import numpy as np
import pytest
from support.charts import asked, explanation, parts, words

from rope_exp.report.charts.drift import drift, drifts, points

THETA0 = [1.0, 0.1, 0.01]


def site(*moves: list[float]) -> dict[str, Any]:
    """Return a pair of sites whose log frequencies have moved by these amounts."""
    theta = [[at * math.exp(by) for at, by in zip(THETA0, row, strict=True)] for row in moves]
    return {"theta0": THETA0, "theta": theta}


def domains(chart: Any) -> list[tuple[float, float]]:
    """Return the vertical domain of each panel."""
    found = [each for each in parts(chart.to_dict()) if each.get("field") == "moved"]
    return [tuple(each["scale"]["domain"]) for each in found]


def test_lines_are_logarithms_of_ratios() -> None:
    rows = [[0.1, -0.2, 0.3], [0.0, 0.4, -0.6]]
    answers = {"log": [{"sites": {"qk": site(*rows), "vo": site([0.0, 0.0, 0.05])}}]}
    report = asked(answers, {"log": "QKVO-log"})
    table = points(report)
    for number, row in enumerate(rows):
        line = table[table["title"].str.contains("q and k") & (table["line"] == number)]
        assert list(line["theta0"]) == THETA0
        np.testing.assert_allclose(list(line["moved"]), row, atol=1e-12)

    # The magnitudes are 0, 0.1, 0.2, 0.3, 0.4, 0.6 for q and k, and 0, 0, 0.05 for v and o.
    titles = {"QKVO-log, q and k: median 0.25", "QKVO-log, v and o: median 0"}
    assert titles <= set(words(drift(report)))


def test_the_sign_of_a_frequency_has_no_effect() -> None:
    turned_back = {"theta0": [0.5], "theta": [[-1.0]]}
    assert drifts(turned_back) == pytest.approx(np.array([[math.log(2)]]))


def test_runs_stand_in_one_panel_under_one_median() -> None:
    report = asked({"raw": [{"sites": {"qk": site([by] * 3)}} for by in (0.1, -0.2, 0.3)]})
    table = points(report)
    assert set(table["title"]) == {"raw, q and k: median 0.2"}
    assert set(table["run"]) == {0, 1, 2}
    assert "(3 seeds per row)" in explanation(drift(report))


def test_rows_without_learned_frequencies_do_not_count() -> None:
    learned = {"sites": {"qk": site([0.1] * 3)}}
    report = asked({"raw": [learned, learned], "fixed": [{"sites": {}}]})
    assert "(2 seeds per row)" in explanation(drift(report))


def test_pairs_of_sites_that_are_not_learned_have_no_panel() -> None:
    both = {"sites": {"qk": site([0.1] * 3), "vo": site([0.2] * 3)}}
    answers = {"qkvo": [both], "vo": [{"sites": {"vo": site([0.3] * 3)}}], "fixed": [{"sites": {}}]}
    chart = drift(asked(answers))
    assert chart is not None
    assert [panel["title"]["text"] for panel in chart.to_dict()["concat"]] == [
        "qkvo, q and k: median 0.1",
        "qkvo, v and o: median 0.2",
        "vo, v and o: median 0.3",
    ]


def test_a_drift_of_nothing_fills_no_panel() -> None:
    [(low, high)] = domains(drift(asked({"log": [{"sites": {"qk": site([1e-5, 0.0, -1e-5])}}]})))
    assert (low, high) == (-0.01, 0.01)


def test_panels_of_a_row_share_a_scale() -> None:
    both = {"sites": {"qk": site([0.1, 0.0, -0.1]), "vo": site([0.0, -0.7, 0.4])}}
    alone = {"sites": {"vo": site([0.2, 0.0, -0.2])}}
    found = domains(drift(asked({"both": [both], "alone": [alone]})))
    assert found[0] == found[1] == pytest.approx((-0.7, 0.4))
    assert found[2] == pytest.approx((-0.2, 0.2))


def test_without_learned_frequencies_there_is_no_figure() -> None:
    assert drift(asked({})) is None
    assert drift(asked({"qk_rope": [{"sites": {}}], "nope": []})) is None
