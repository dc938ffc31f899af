"""Tests of the figures of attention by distance, with its references, and of kappa by head."""

import re
from typing import Any

import numpy as np
import pytest
from support.charts import WIDEST, asked, explanation, width, words

from rope_exp.report.charts.distance import distance, heads, kappa, levels, weights
from rope_exp.report.charts.svg import svg_of
from rope_exp.report.looks import look

M = [0, 1, 2, 3, 6, 12]
NAMES = {"qk_rope": "QK-RoPE"}


def make_answer(level: float = 0.1, **more: Any) -> dict[str, Any]:
    """Return an answer of two layers, the second with twice the weights of the first."""
    attention = [level / (m + 1) for m in M]
    return {
        "m": M,
        "attention": {"0": attention, "1": [2 * weight for weight in attention]},
        "uniform": [0.05] * len(M),
        **more,
    }


def turning(level: float = 0.1, num_heads: int = 2) -> dict[str, Any]:
    """Return an answer of a model in which q and k both rotate in the second layer."""
    of_heads = [[head - 0.1 * m for m in M] for head in range(num_heads)]
    bound = [10 - m / 2 for m in M]
    return make_answer(level, bound=bound, kappa={"1": of_heads})


def lines(table: Any) -> dict[str, list[float]]:
    """Return the weights of each reference line."""
    return {
        str(name): list(found["weight"].dropna())
        for name, found in table.groupby("line", sort=False)
    }


def test_lines_are_means_over_layers_and_runs() -> None:
    answers = {"qk_rope": [turning(0.1), turning(0.3)], "nope": [make_answer(0.2)]}
    report = asked(answers, NAMES)
    table = weights(report)
    for label in ("qk_rope", "nope"):
        found = table[table["label"] == label]
        assert list(found["distance"]) == [m + 1 for m in M]
        np.testing.assert_allclose(found["weight"], [1.5 * 0.2 / (m + 1) for m in M])
        # One in each octave.
        assert list(found[found["marked"]]["distance"]) == [1, 2, 4, 13]

    assert lines(levels(report))["qk_rope uniform"] == [0.05] * len(M)
    # Equal lines are drawn once.
    assert set(lines(levels(report))) == {"qk_rope uniform", "qk_rope bound"}
    said = words(distance(report))
    assert {"QK-RoPE", "nope"} <= set(said)
    assert "Dotted: f(m)" in said[-1]


def test_the_bound_keeps_its_shape_at_the_level_of_uniform() -> None:
    answers = {"qk_rope": [turning()], "qkvo_rope": [turning()]}
    found = lines(levels(asked(answers)))
    heights = found["qk_rope bound"]
    np.testing.assert_allclose(np.mean(heights), 0.05)
    np.testing.assert_allclose(heights[4] / heights[0], 7 / 10)
    # Rows with equal frequencies share one line.
    assert "qkvo_rope bound" not in found


def test_rows_of_other_frequencies_have_bounds_of_their_own() -> None:
    other = turning() | {"bound": [10 - m / 3 for m in M]}
    found = levels(asked({"qk_rope": [turning()], "qk_rope-base500": [other]}, NAMES))
    for number, label in enumerate(("qk_rope", "qk_rope-base500")):
        own = found[found["line"] == f"{label} bound"]
        assert set(own["color"]) == {look(label, number)["color"]}


def test_a_row_with_a_window_has_a_uniform_of_its_own() -> None:
    windowed = make_answer() | {"uniform": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]}
    found = lines(levels(asked({"qk_rope": [turning()], "nope-window2": [windowed]}, NAMES)))
    assert found["nope-window2 uniform"] == [0.5, 0.5]
    assert len(found["qk_rope uniform"]) == len(M)


def test_what_has_no_logarithm_is_left_out() -> None:
    """Weights outside a window are 0, and a row without rotation has no bound."""
    answer = make_answer()
    answer["attention"] = {"0": [0.5, 0.2, 0.1, 0.0, 0.0, -0.01]}
    report = asked({"nope": [answer]})
    assert list(weights(report)["weight"].dropna()) == [0.5, 0.2, 0.1]
    assert "f(m)" not in explanation(distance(report))


def test_kappa_has_a_line_a_head_of_the_first_run() -> None:
    answers = {
        "qk_rope": [turning(), turning(num_heads=5)],
        "nope": [make_answer()],
        "vo_rope": [make_answer(kappa={})],
    }
    report = asked(answers, NAMES)
    table = heads(report, 1)
    assert set(table["label"]) == {"qk_rope"}
    assert set(table["head"]) == {0, 1}
    second = table[table["head"] == 1]
    np.testing.assert_allclose(list(second["score"]), [1 - 0.1 * m for m in M])
    assert "QK-RoPE" in words(kappa(report, 1))
    # In the first layer, q and k do not rotate.
    assert kappa(report, 0) is None


@pytest.mark.parametrize("count", [1, 4, 9])
def test_many_lines_fit_the_page(count: int) -> None:
    answers = {f"pe.base={number}": [turning(num_heads=16)] for number in range(count)}
    for chart in (distance(asked(answers)), kappa(asked(answers), 1)):
        assert {f"pe.base={number}" for number in range(count)} <= set(words(chart))
        assert width(chart) <= WIDEST


def test_heads_go_from_pale_to_dark_in_grey() -> None:
    svg = svg_of(kappa(asked({"qk_rope": [turning(num_heads=16)]}), 1).to_dict()).decode()
    lines = re.findall(r'stroke="rgb\((\d+), (\d+), (\d+)\)" stroke-width="1.2"', svg)
    greys = np.array(lines, dtype=float) @ [0.3, 0.59, 0.11] / 255
    assert len(greys) == 16
    assert (np.diff(greys) < 0).all()
    assert greys[0] < 0.85


def test_without_answers_there_is_no_figure() -> None:
    assert distance(asked({"qk_rope": []})) is None
    assert kappa(asked({"qk_rope": [], "nope": [make_answer()]}), 1) is None
