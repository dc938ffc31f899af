"""Tests of the figure of learned frequencies: their log ratios, and the median magnitude."""

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.figures import artists, asked, line, texts

from rope_exp.report.paper.drift import drift, drifts

THETA0 = [1.0, 0.1, 0.01]


def site(*moves: list[float]) -> dict[str, Any]:
    """Return a pair of sites whose log frequencies have moved by these amounts."""
    theta = [[at * math.exp(by) for at, by in zip(THETA0, row, strict=True)] for row in moves]
    return {"theta0": THETA0, "theta": theta}


def visible(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible()]


def test_lines_are_logarithms_of_ratios() -> None:
    rows = [[0.1, -0.2, 0.3], [0.0, 0.4, -0.6]]
    answers = {"log": [{"sites": {"qk": site(*rows), "vo": site([0.0, 0.0, 0.05])}}]}
    figure = drift(asked(answers, {"log": "QKVO-log"}))
    assert figure is not None
    for number, row in enumerate(rows):
        at, heights = line(figure, f"log qk 0 {number}")
        assert at == THETA0
        np.testing.assert_allclose(heights, row, atol=1e-12)

    # The magnitudes are 0, 0.1, 0.2, 0.3, 0.4, 0.6 for q and k, and 0, 0, 0.05 for v and o.
    said = texts(figure)
    assert "QKVO-log q and k: median 0.25" in said
    assert "QKVO-log v and o: median 0" in said
    assert all(axes.get_xscale() == "log" for axes in visible(figure))


def test_the_sign_of_a_frequency_has_no_effect() -> None:
    turned_back = {"theta0": [0.5], "theta": [[-1.0]]}
    assert drifts(turned_back) == pytest.approx(np.array([[math.log(2)]]))


def test_runs_stand_in_one_panel_under_one_median() -> None:
    runs = [{"sites": {"qk": site([by] * 3)}} for by in (0.1, -0.2, 0.3)]
    figure = drift(asked({"raw": runs}))
    assert figure is not None
    assert {f"raw qk {run} 0" for run in range(3)} <= set(artists(figure))
    assert "raw q and k: median 0.2" in texts(figure)
    assert any("(3 seeds per row)" in said for said in texts(figure))


def test_pairs_of_sites_that_are_not_learned_have_no_panel() -> None:
    both = {"sites": {"qk": site([0.1] * 3), "vo": site([0.2] * 3)}}
    answers = {"qkvo": [both], "vo": [{"sites": {"vo": site([0.3] * 3)}}], "fixed": [{"sites": {}}]}
    figure = drift(asked(answers))
    assert figure is not None
    titles = [" ".join(axes.get_title(loc="left").split()) for axes in visible(figure)]
    assert titles == [
        "qkvo q and k: median 0.1",
        "qkvo v and o: median 0.2",
        "vo v and o: median 0.3",
    ]


def test_a_drift_of_nothing_fills_no_panel() -> None:
    figure = drift(asked({"log": [{"sites": {"qk": site([1e-5, 0.0, -1e-5])}}]}))
    assert figure is not None
    low, high = figure.axes[0].get_ylim()
    assert low <= -0.01 < 0.01 <= high


def test_panels_of_a_line_have_room_for_both() -> None:
    both = {"sites": {"qk": site([0.1, 0.0, -0.1]), "vo": site([0.0, -0.7, 0.4])}}
    alone = {"sites": {"vo": both["sites"]["vo"]}}
    figure = drift(asked({"both": [both], "alone": [alone]}))
    assert figure is not None
    assert len(visible(figure)) == 3
    for axes in visible(figure):
        low, high = axes.get_ylim()
        assert low < -0.7
        assert high > 0.4


def test_without_learned_frequencies_there_is_no_figure() -> None:
    assert drift(asked({})) is None
    assert drift(asked({"qk_rope": [{"sites": {}}], "nope": []})) is None
