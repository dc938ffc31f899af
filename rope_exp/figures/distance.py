"""Figure of attention by distance, with the bound of scores."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from rope_exp.figures import _style as style
from rope_exp.report import Figure, Report
from rope_exp.svg import GREY

_DASHES = {"uniform": [5, 4], "bound": [1, 2]}


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw the mean attention by distance of each row, over its layers and runs; None without."""
    if not report.numbers("distance"):
        return None
    answers = report.answers("distance")

    x = alt.X("distance:Q", title="distance m + 1 (tokens)")
    x = x.scale(type="log", base=2, nice=False, padding=6).axis(format="~s", tickCount=6)
    ticks = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)]
    y = alt.Y("weight:Q", title="mean weight on the key at distance m")
    y = y.scale(type="log", nice=False, padding=8).axis(format="~g", values=ticks)

    base = style.with_looks(report, weights(report)).encode(x=x, y=y)
    level = alt.Chart(levels(report)).encode(x=x, y=y)
    lines = [style.row_lines(level, 1.2, "line"), style.row_lines(base, 1.2)]
    panel = alt.layer(*lines, *style.markers(base, size=35), width=560, height=330)

    counts = (len(of_row) for of_row in answers.values())
    sentences = [
        "Mean over heads, layers and the queries in the second half of a window "
        f"({style.seeds(counts)} per row). The query's token is at 1. "
        "Dashed: uniform attention, where query i weights its i + 1 keys equally; attention "
        "windows and bidirectional attention have another number of keys."
    ]
    if any("bound" in answer for answer, *_ in answers.values()):
        sentences.append(
            "Dotted: f(m), a bound on the effect of distance on a score, up to a factor. It is "
            "scaled to the mean of uniform attention, so only its slope is meaningful."
        )
    title = style.explanation(sentences)
    return alt.hconcat(panel, style.key_of(report, answers), title=title)


def weights(report: Report) -> pd.DataFrame:
    """Return each row's mean weight by distance: columns label, distance and weight."""
    means: dict[str, Any] = {
        label: numbers["distance"].mean() for label, numbers in report.numbers("distance").items()
    }
    table = pd.concat(means, names=["label", "distance"]).rename("weight")
    return _on_log_axes(table.reset_index())


def levels(report: Report) -> pd.DataFrame:
    """Return the distinct lines of uniform attention, and of the bound, scaled to its mean."""
    lines = {}
    for kind in _DASHES:
        for answer, *_ in report.answers("distance").values():
            if kind in answer:
                lines[kind, *answer[kind]] = answer
    tables: list[pd.DataFrame] = []
    for (kind, *line), answer in lines.items():
        weight = np.mean(answer["uniform"]) / np.mean(line) * np.array(line)
        table = pd.DataFrame({"distance": answer["m"], "weight": weight, "color": GREY})
        table["line"] = f"{kind} {len(tables)}"
        table["dash"] = pd.Series([_DASHES[kind]] * len(table))
        tables.append(table)
    return _on_log_axes(pd.concat(tables))


def _on_log_axes(table: pd.DataFrame) -> pd.DataFrame:
    """Count distances from 1, and interrupt lines at weights of 0 (beyond a window) and below."""
    weight = table["weight"].where(table["weight"] > 0)
    return table.assign(distance=table["distance"] + 1, weight=weight)


FIGURE = Figure(order=5, draw=figure)
