"""Shared style of all charts: limits of axes, explanations, and files.

A chart is at most about 740 pixels wide, so that its text has 7 points or more at 6.75 inches.
"""

import functools
import textwrap
from collections.abc import Callable, Iterable

import altair as alt
from altair.utils.schemapi import debug_mode

from rope_exp.evidence.significance import MARGIN
from rope_exp.report.charts.svg import svg_of
from rope_exp.report.content import Report

Draw = Callable[[Report], alt.TopLevelMixin | None]

# An expression for the labels of an axis of differences.
SIGNED = "datum.value ? format(datum.value, '+~g') : '0'"


@functools.cache
def drawn(draw: Draw, report: Report) -> bytes | None:
    """Return a report's chart as an SVG file, kept for the page.

    None if the report does not allow the chart.
    """
    # Checking against the schema takes a fifth of the time, and a wrong chart is not drawn anyway.
    with debug_mode(False):
        chart = draw(report)
        return None if chart is None else svg_of(chart.to_dict(validate=False))


def limits(means: Iterable[float], ends: Iterable[float] = ()) -> tuple[float, float]:
    """Return the limits of an axis of differences: 0, every mean, and ends of intervals.

    Intervals may extend the axis on each side by at most half the range of the means, or two
    margins if that is more. So one noisy row leaves the others readable; its interval is cut off.
    """
    shown = [0.0, *means]
    low = min(shown)
    high = max(shown)
    span = max(high - low, 4 * MARGIN)

    low = max(min([low, *ends]), low - span / 2)
    high = min(max([high, *ends]), high + span / 2)
    pad = 0.04 * max(high - low, span)
    return low - pad, high + pad


def zero_line() -> alt.Chart:
    """Return a line at 0, for a vertical axis of differences."""
    rule = alt.Chart().mark_rule(style="zero")
    return rule.encode(y=alt.YDatum(0, type="quantitative"))


def zero_and_margin() -> list[alt.Chart]:
    """Return the margin's band and a line at 0, for a horizontal axis of differences."""
    band = alt.Chart(alt.InlineData([{"low": -MARGIN, "high": MARGIN}]))
    zero = alt.Chart().mark_rule(style="zero")
    return [
        band.mark_rect(style="margin").encode(x=alt.X("low:Q"), x2=alt.X2("high")),
        zero.encode(x=alt.XDatum(0, type="quantitative")),
    ]


def explanation(sentences: Iterable[str]) -> alt.Title:
    """Return a title below a chart that explains it.

    A chart gets it, and its size, when it is made: a method that returns a changed chart copies it.
    """
    lines = textwrap.wrap(" ".join(sentences), width=128)
    return alt.Title(lines, orient="bottom", anchor="start", frame="bounds", offset=14)
