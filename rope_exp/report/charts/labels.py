"""Names at the ends of lines, moved apart to avoid overlaps."""

from collections.abc import Iterator, Sequence

import altair as alt
import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

# Pixels from one line of text to the next.
_LEADING = 13


def end_names(
    ends: pd.DataFrame, domain: tuple[float, float], width: int, height: int
) -> Iterator[alt.Chart]:
    """Write names to the right of a chart, each joined to the end of its line by a stroke.

    Args:
        ends: columns `name` and `end`, the last height of a line.
        domain: of the vertical axis.
        width, height: of the chart, in pixels.
    """
    low, high = domain
    inside = ends.assign(end=ends["end"].clip(low, high))
    gap = _LEADING / height * (high - low)
    places = spread(list(inside["end"]), gap, low + gap / 2, high - gap / 2)

    base = alt.Chart(inside.assign(place=places))
    stroke = base.mark_rule(style="quiet").encode(y=alt.Y("end:Q"), y2=alt.Y2("place"))
    yield stroke.encode(x=alt.XValue(width + 2), x2=alt.X2Value(width + 14))
    name = base.mark_text(align="left").encode(x=alt.XValue(width + 17), y=alt.Y("place:Q"))
    yield name.encode(text=alt.Text("name:N"))


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
