"""Labels at the ends of lines, moved apart to avoid overlaps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

from rope_exp.report.paper.style import GREY, INK, SMALL, Style

# Spacing of lines of text, as a multiple of the font size.
_LEADING = 1.25


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


def label_ends(axes: Axes, lines: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write a column of labels, each joined to the end of its line by a thin stroke.

    Args:
        axes: empty axes to the right of the lines; the layout of both is fixed first.
        lines: the axes with the lines.
        ends: the label, the height and the text of each line's end.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    edge = lines.get_position()
    beside = axes.get_position()
    axes.set_position((edge.x1, edge.y0, beside.x1 - edge.x1, edge.height))
    axes.set_ylim(lines.get_ylim())
    axes.set_axis_off()

    low, high = axes.get_ylim()
    width, height = axes.get_position().size * (figure.get_size_inches() * 72)
    point = 1 / width
    gap = (high - low) * SMALL * _LEADING / height
    inside = [min(max(end, low), high) for _, end, _ in ends]
    across = axes.get_yaxis_transform()
    tie: Style = {"color": GREY, "linewidth": 0.5, "transform": across, "clip_on": False}
    style: Style = {"fontsize": SMALL, "color": INK, "va": "center_baseline", "transform": across}
    places = spread(inside, gap, low + gap / 2, high - gap / 2)
    for (label, _, text), begin, place in zip(ends, inside, places, strict=True):
        axes.plot([2 * point, 12 * point], [begin, place], **tie)
        axes.text(14 * point, place, text, gid=f"{label} name", **style)
