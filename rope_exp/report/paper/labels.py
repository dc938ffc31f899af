"""Labels at the ends of lines, moved apart to avoid overlaps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

from rope_exp.report.paper.style import GREY, INK, SMALL

# Spacing of lines of text, as a multiple of the font size.
_LEADING = 1.25


@dataclass(frozen=True)
class End:
    """The end of a row's line: its height, and the text beside it."""

    label: str
    height: float
    text: str


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return heights near the wanted ones, in the same order, at least `gap` apart.

    Neighbours that are too close move as one block around the mean of their wanted heights (least
    squares). All are within [low, high] if they fit.
    """
    order = np.argsort(wanted, kind="stable")
    # With the gaps subtracted, heights only need to increase.
    gaps = gap * np.arange(len(order))
    heights = isotonic_regression(np.array(wanted)[order] - gaps).x
    placed = np.empty(len(order))
    placed[order] = np.clip(heights, low, high - gap * (len(order) - 1)) + gaps
    return [float(height) for height in placed]


def label_ends(axes: Axes, lines: Axes, ends: Sequence[End]) -> None:
    """Write a column of labels, each joined to the end of its line by a thin stroke.

    Args:
        axes: empty axes to the right of the lines; the layout of both is fixed.
        lines: the axes with the lines.
    """
    edge = lines.get_position()
    beside = axes.get_position()
    axes.set_position((edge.x1, edge.y0, beside.x1 - edge.x1, edge.height))
    axes.set_ylim(lines.get_ylim())
    axes.set_axis_off()

    low, high = axes.get_ylim()
    width, height = _points(axes)
    gap = (high - low) * SMALL * _LEADING / height

    inside = [min(max(end.height, low), high) for end in ends]
    places = spread(inside, gap, low + gap / 2, high - gap / 2)
    for end, begin, place in zip(ends, inside, places, strict=True):
        _write(axes, end, begin, place, 1 / width)


def _write(axes: Axes, end: End, begin: float, place: float, point: float) -> None:
    """Write one label and its stroke; `point` is one point as a share of the axes' width."""
    across = axes.get_yaxis_transform()
    tie = [2 * point, 12 * point]
    axes.plot(tie, [begin, place], color=GREY, linewidth=0.5, transform=across, clip_on=False)

    style: dict[str, Any] = {"fontsize": SMALL, "color": INK, "va": "center_baseline"}
    axes.text(14 * point, place, end.text, transform=across, gid=f"{end.label} name", **style)


def _points(axes: Axes) -> tuple[float, float]:
    """Return the size of frozen axes, in points."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position()
    width, height = figure.get_size_inches() * 72
    return float(box.width * width), float(box.height * height)
