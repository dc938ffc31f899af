"""Tests of the figure of losses at longer windows: a panel per row, a line per method."""

from typing import Any

import numpy as np
from support.charts import asked, parts, words

from rope_exp.report.charts.extension import extension, points

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


def lines(report: Any) -> dict[tuple[str, str, str], list[float]]:
    """Return the losses of each line, by row, method and sites."""
    groups = points(report).groupby(["name", "method", "sites"], sort=False)
    return {key: list(found["loss"]) for key, found in groups}


def test_lines_are_means_over_runs() -> None:
    answers = {
        "qkvo_rope": [make_answer("qk", "vo", "qkvo", level=level) for level in (3.0, 3.2)],
        "vo_rope": [make_answer("vo")],
    }
    report = asked(answers, {"vo_rope": "VO-RoPE"})
    found = lines(report)
    assert sorted(set(points(report)["factor"])) == [1, 2, 4]
    np.testing.assert_allclose(found["qkvo_rope", "as trained", ""], [3.1, 4.1, 5.1])
    np.testing.assert_allclose(found["qkvo_rope", "YaRN", "q, k, v and o"], [3.1, 3.4, 3.14])
    np.testing.assert_allclose(found["VO-RoPE", "NTK-aware", "v and o"], [3.0, 3.2, 3.02])
    assert ("VO-RoPE", "YaRN", "q and k") not in found

    said = set(words(extension(report)))
    assert {"qkvo_rope", "VO-RoPE", "q and k", "v and o", "q, k, v and o", "YaRN", "4×"} <= said


def test_lines_of_one_row_are_apart_without_colour() -> None:
    """Markers tell methods apart, and dashes sites."""
    chart = extension(asked({"qkvo_rope": [make_answer("qk", "vo", "qkvo")]}))
    assert chart is not None
    ranges = {
        each["field"]: each["scale"]["range"]
        for each in parts(chart.to_dict())
        if "range" in each.get("scale", {}) and not str(each["scale"]["range"][0]).startswith("#")
    }
    assert len(set(ranges["method"])) == 4
    assert len({str(dash) for dash in ranges["sites"]}) == 3


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    answer = make_answer("qk")
    answer["interpolation"]["qk"][2] = float("nan")
    report = asked({"qk_rope": [answer]})
    losses = lines(report)["qk_rope", "interpolation", "q and k"]
    assert np.isfinite(losses).tolist() == [True, True, False]
    assert "v and o" not in words(extension(report))


def test_without_answers_there_is_no_figure() -> None:
    assert extension(asked({})) is None
