"""Tests of the figures of attention by distance, with its references, and of kappa by head."""

from typing import Any

import numpy as np
import pytest
from matplotlib.lines import Line2D
from support.figures import artists, asked, line, texts

from rope_exp.report.looks import look
from rope_exp.report.paper.distance import distance, kappa
from rope_exp.report.paper.style import files_of

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
    heads = [[head - 0.1 * m for m in M] for head in range(num_heads)]
    bound = [10 - m / 2 for m in M]
    return make_answer(level, bound=bound, kappa={"1": heads})


def test_lines_are_means_over_layers_and_runs() -> None:
    answers = {"qk_rope": [turning(0.1), turning(0.3)], "nope": [make_answer(0.2)]}
    figure = distance(asked(answers, NAMES))
    assert figure is not None

    for label, level in (("qk_rope", 0.2), ("nope", 0.2)):
        at, heights = line(figure, f"{label} attention")
        assert at == [m + 1 for m in M]
        np.testing.assert_allclose(heights, [1.5 * level / (m + 1) for m in M])
    assert line(figure, "qk_rope uniform")[1] == [0.05] * len(M)
    assert "nope uniform" not in artists(figure)
    assert {"QK-RoPE", "nope", "uniform", "f(m)"} <= set(texts(figure))
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_the_bound_keeps_its_shape_at_the_level_of_uniform() -> None:
    answers = {"qk_rope": [turning()], "qkvo_rope": [turning()]}
    figure = distance(asked(answers))
    assert figure is not None
    heights = line(figure, "qk_rope bound")[1]
    np.testing.assert_allclose(np.mean(heights), 0.05)
    np.testing.assert_allclose(heights[4] / heights[0], 7 / 10)
    # Rows with equal frequencies share one line.
    assert "qkvo_rope bound" not in artists(figure)


def test_rows_of_other_frequencies_have_bounds_of_their_own() -> None:
    other = turning() | {"bound": [10 - m / 3 for m in M]}
    figure = distance(asked({"qk_rope": [turning()], "qk_rope-base500": [other]}, NAMES))
    assert figure is not None
    lines = artists(figure)
    for label in ("qk_rope", "qk_rope-base500"):
        bound, attention = lines[f"{label} bound"], lines[f"{label} attention"]
        assert isinstance(bound, Line2D)
        assert isinstance(attention, Line2D)
        assert bound.get_color() == attention.get_color()
    assert {"f(m) of QK-RoPE", "f(m) of qk_rope-base500"} <= set(texts(figure))


def test_a_row_with_a_window_has_a_uniform_of_its_own() -> None:
    windowed = make_answer() | {"uniform": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]}
    figure = distance(asked({"qk_rope": [turning()], "nope-window2": [windowed]}, NAMES))
    assert figure is not None
    heights = line(figure, "nope-window2 uniform")[1]
    assert np.isfinite(heights).tolist() == [True] * 2 + [False] * 4
    assert {"uniform of QK-RoPE", "uniform of nope-window2"} <= set(texts(figure))


def test_rows_that_are_no_variants_look_as_in_other_figures() -> None:
    """Looks follow the row's place among all rows, including those without an answer."""
    answers = {"pe.base=5": [make_answer()], "pe.base=9": [make_answer()]}
    figure = distance(asked(answers, numbers={"pe.base=5": 3, "pe.base=9": 0, "pe.base=7": 1}))
    assert figure is not None
    for label, number in (("pe.base=5", 3), ("pe.base=9", 0)):
        drawn = artists(figure)[f"{label} attention"]
        assert isinstance(drawn, Line2D)
        assert drawn.get_color() == look(label, number)["color"]


def test_what_has_no_logarithm_is_left_out() -> None:
    """Weights outside a window are 0, and a row without rotation has no bound."""
    answer = make_answer()
    answer["attention"] = {"0": [0.5, 0.2, 0.1, 0.0, 0.0, -0.01]}
    figure = distance(asked({"nope": [answer]}))
    assert figure is not None
    assert np.isfinite(line(figure, "nope attention")[1]).tolist() == [True] * 3 + [False] * 3
    assert not any("f(m)" in said for said in texts(figure))


def test_kappa_has_a_line_a_head_of_the_first_run() -> None:
    answers = {
        "qk_rope": [turning(), turning(num_heads=5)],
        "nope": [make_answer()],
        "vo_rope": [make_answer(kappa={})],
    }
    figure = kappa(asked(answers, NAMES), 1)
    assert figure is not None
    heads = [name for name in artists(figure) if "head" in name]
    assert heads == ["qk_rope head 0", "qk_rope head 1"]
    np.testing.assert_allclose(line(figure, "qk_rope head 1")[1], [1 - 0.1 * m for m in M])
    assert "QK-RoPE" in texts(figure)
    # In the first layer, q and k do not rotate.
    assert kappa(asked(answers), 0) is None


@pytest.mark.parametrize("count", [1, 4, 9])
def test_legends_of_many_lines_fit_the_page(count: int) -> None:
    answers = {f"pe.base={number}": [turning(num_heads=16)] for number in range(count)}
    for figure in (distance(asked(answers)), kappa(asked(answers), 1)):
        assert figure is not None
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


def test_without_answers_there_is_no_figure() -> None:
    assert distance(asked({"qk_rope": []})) is None
    assert kappa(asked({"qk_rope": [], "nope": [make_answer()]}), 1) is None
    assert files_of("distance", distance(asked({}))) == {}
