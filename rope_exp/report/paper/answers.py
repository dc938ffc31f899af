"""Figure of generated data: the share of right answers, by length or distance of examples."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rope_exp.report.answers import Bin, bins, shares, splits, with_answers
from rope_exp.report.content import Line, Report
from rope_exp.report.looks import look
from rope_exp.report.paper.style import (
    GREY,
    SMALL,
    WIDTH,
    Style,
    seeds,
    small_print,
    styled,
)

# The distance of neighbours in a bin, in bins, which keeps equal values visible.
APART = 0.06


@styled
def answers(report: Report) -> Figure | None:
    """Draw each row's exact matches by bin, all splits in one panel; None if there are none."""
    rows = with_answers(report)
    if not rows or report.task is None:
        return None

    figure = Figure(figsize=(WIDTH, 3.4))
    axes = figure.subplots()
    of_splits = {split: bins(report, split) for split in splits(report)}
    start = 0
    for split, parts in of_splits.items():
        for number, row in enumerate(rows):
            offset = APART * (number - (len(rows) - 1) / 2)
            _draw(axes, row, split, parts, start + offset)
        _name_split(axes, split, start, len(parts))
        start += len(parts)

    every = [part for parts in of_splits.values() for part in parts]
    axes.set_xticks(range(len(every)), [part.name for part in every])
    axes.set_xlim(-0.6, len(every) - 0.4)
    axes.set_ylim(-3, 103)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel=report.task.span, ylabel="exact matches (%)")

    handles = [Line2D([], [], label=row.name, **look(row.label, row.number)) for row in rows]
    columns = math.ceil(len(handles) / math.ceil(len(handles) / 6))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    small_print(figure, *_print(report, rows))
    return figure


def _draw(axes: Axes, row: Line, split: str, parts: Sequence[Bin], start: float) -> None:
    """Draw a row's means, joined within a split, and a dot for each seed."""
    style = look(row.label, row.number) | {"linewidth": 0.7, "markersize": 4}
    values = [np.array(list(shares(row, part).values())) * 100 for part in parts]
    places = start + np.arange(len(parts))

    means = [found.mean() if len(found) else math.nan for found in values]
    axes.plot(places, means, gid=f"{row.label} {split}", **style)
    for place, found in zip(places, values, strict=True):
        if len(found) > 1:
            dots: Style = {"color": style["color"], "marker": ".", "markersize": 3, "alpha": 0.5}
            axes.plot(np.full(len(found), place), found, linestyle="none", zorder=1.5, **dots)


def _name_split(axes: Axes, split: str, start: int, count: int) -> None:
    """Write a split's name above its bins, and draw a line before all but the first."""
    if start:
        axes.axvline(start - 0.5, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    above = axes.get_xaxis_transform()
    middle = start + (count - 1) / 2
    axes.text(
        middle, 1.01, split, transform=above, ha="center", va="bottom", color=GREY, fontsize=SMALL
    )


def _print(report: Report, rows: Sequence[Line]) -> list[str]:
    counts = [sum("answers" in run.probes for run in row.runs) for row in rows]
    said = [
        f"Group {report.groups}; {seeds(counts)} per row. Markers: means over seeds, drawn side by "
        "side; dots: single seeds."
    ]
    if "longer" in splits(report):
        said.append("Test: examples like those in training; longer: longer than any in training.")
    return said
