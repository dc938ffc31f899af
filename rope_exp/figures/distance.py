"""Figure of attention by distance, with the bound of scores.

The input is the answers to the probe `distance`. A(m) is the mean weight
on the key m tokens before a query, f(m) the long-range decay of Su 2021.
"""

from collections.abc import Iterator

import altair as alt
import numpy as np
import pandas as pd

from rope_exp.figures.style import (
    GREY,
    explanation,
    key_of,
    look,
    looks,
    markers,
    row_lines,
    with_looks,
)
from rope_exp.report import Report
from rope_exp.table import seeds

ORDER = 5
_WIDTH = 560
_HEIGHT = 330
_DASHES = {"uniform": [5, 4], "bound": [1, 2]}


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw the mean attention by distance of each row, over its layers and runs; None without."""
    if not report.answers("distance"):
        return None

    table = weights(report)
    x = alt.X("distance:Q", title="distance m + 1 (tokens)")
    x = x.scale(type="log", base=2, nice=False, padding=6).axis(format="~s", tickCount=6)
    y = alt.Y("weight:Q", title="mean weight on the key at distance m")
    y = y.scale(type="log", nice=False, padding=8)
    y = y.axis(
        format="~g", values=[digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)]
    )

    base = with_looks(table).encode(x=x, y=y)
    level = alt.Chart(levels(report)).encode(x=x, y=y)
    panel = alt.layer(
        row_lines(level, 1.2, "line:N"),
        row_lines(base, 1.2),
        *markers(base.transform_filter("datum.marked"), size=35),
        width=_WIDTH,
        height=_HEIGHT,
    )
    rows = [report.rows[label] for label in report.answers("distance")]
    return alt.hconcat(
        panel, key_of(rows), datasets=looks(report), title=explanation(_sentences(report))
    )


def weights(report: Report) -> pd.DataFrame:
    """Return each row's mean weight by distance: columns label, distance, weight and marked.

    Distances count from 1, as a log axis has no place for 0. About one distance an octave has a
    marker.
    """
    found = []
    for label, answers in report.answers("distance").items():
        m = np.array(answers[0]["m"])
        layers = [answer["attention"][layer] for answer in answers for layer in answer["attention"]]
        octaves = np.floor(np.log2(m + 1))
        table = pd.DataFrame({"distance": m + 1, "weight": np.mean(np.array(layers), axis=0)})
        table["marked"] = np.isin(np.arange(len(m)), np.unique(octaves, return_index=True)[1])
        found.append(table.assign(label=label))
    return _on_log_axis(pd.concat(found))


def levels(report: Report) -> pd.DataFrame:
    """Return the distinct lines of uniform attention and of the bound, by distance.

    Columns are line, distance, weight, color and dash. Lines have the colour of their first row if
    there are several of a kind. Bounds are scaled to the mean of uniform attention; rows with a
    window have another uniform attention.
    """
    answers = report.answers("distance")
    found = []
    for key, dash in _DASHES.items():
        first: dict[tuple[float, ...], str] = {}
        for label, of_row in answers.items():
            if key in of_row[0]:
                first.setdefault(tuple(of_row[0][key]), label)
        for line, label in first.items():
            answer = answers[label][0]
            scale = np.mean(answer["uniform"]) / np.mean(line) if key == "bound" else 1
            color = look(label, report.rows[label].number)["color"]
            table = pd.DataFrame(
                {"distance": np.array(answer["m"]) + 1, "weight": scale * np.array(line)}
            )
            table["line"] = f"{label} {key}"
            table["color"] = color if len(first) > 1 else GREY
            table["dash"] = [dash] * len(table)
            found.append(table)
    return _on_log_axis(pd.concat(found))


def _on_log_axis(table: pd.DataFrame) -> pd.DataFrame:
    """Interrupt lines at weights of 0 (beyond a window) and below (of linear attention)."""
    return table.assign(weight=table["weight"].where(table["weight"] > 0))


def _sentences(report: Report) -> Iterator[str]:
    answers = report.answers("distance")
    yield (
        "Mean over heads, layers and the queries in the second half of a window "
        f"({seeds(len(found) for found in answers.values())} per row). The query's token is at 1. "
        "Dashed: uniform attention, where query i weights its i + 1 keys equally; attention "
        "windows and bidirectional attention have another number of keys."
    )
    if any("bound" in found[0] for found in answers.values()):
        yield (
            "Dotted: f(m), a bound on the effect of distance on a score, up to a factor. It is "
            "scaled to the mean of uniform attention, so only its slope is meaningful."
        )
