"""Tests of the figure of losses at longer windows: a panel per row, a line per method."""

from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from support.figures import artists, asked, line, texts

from rope_exp.report.paper.extension import extension

LENGTHS = [256, 512, 1024]


def make_answer(*targets: str, level: float = 3.0) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "num_windows": 4,
        "lengths": LENGTHS,
        "as_trained": [level, level + 1, level + 2],
    }
    for number, method in enumerate(("interpolation", "ntk_aware", "yarn"), start=1):
        answer[method] = {
            target: [level, level + 0.1 * number, level + 0.01 * len(target)] for target in targets
        }
    return answer


def test_lines_are_means_over_runs() -> None:
    answers = {
        "qkvo_rope": [make_answer("qk", "vo", "qkvo", level=level) for level in (3.0, 3.2)],
        "vo_rope": [make_answer("vo")],
    }
    figure = extension(asked(answers, {"vo_rope": "VO-RoPE"}))
    assert figure is not None
    at, heights = line(figure, "qkvo_rope as_trained")
    assert at == [1, 2, 4]
    np.testing.assert_allclose(heights, [3.1, 4.1, 5.1])
    np.testing.assert_allclose(line(figure, "qkvo_rope yarn qkvo")[1], [3.1, 3.4, 3.14])
    np.testing.assert_allclose(line(figure, "vo_rope ntk_aware vo")[1], [3.0, 3.2, 3.02])
    assert "vo_rope yarn qk" not in artists(figure)

    said = set(texts(figure))
    assert {"qkvo_rope", "VO-RoPE", "q and k", "v and o", "q, k, v and o", "YaRN", "4×"} <= said


def test_lines_of_one_row_are_apart_without_colour() -> None:
    """Markers and dashes distinguish them."""
    figure = extension(asked({"qkvo_rope": [make_answer("qk", "vo", "qkvo")]}))
    assert figure is not None
    drawn = [each for each in artists(figure).values() if isinstance(each, Line2D)]
    looks = {(str(each.get_marker()), str(each.get_linestyle())) for each in drawn}
    assert len(drawn) == 10
    # The line as trained has its own marker. matplotlib reports every custom dash as "--".
    assert len(looks) >= 7
    assert len({each.get_color() for each in drawn}) == 4


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    answer = make_answer("qk")
    answer["interpolation"]["qk"][2] = float("nan")
    figure = extension(asked({"qk_rope": [answer]}))
    assert figure is not None
    assert np.isfinite(line(figure, "qk_rope interpolation qk")[1]).tolist() == [True, True, False]
    assert "v and o" not in texts(figure)


def test_without_answers_there_is_no_figure() -> None:
    assert extension(asked({})) is None
