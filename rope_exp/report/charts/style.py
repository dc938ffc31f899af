"""Shared style of all charts: fonts, greys, limits of axes, explanations, and reproducible files.

A chart is at most about 740 pixels wide, so that its text has 7 points or more at 6.75 inches.
"""

import functools
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from rope_exp.evidence.significance import MARGIN
from rope_exp.report.content import Report

# A Vega-Lite specification.
Spec = dict[str, Any]

INK = "#222222"
GREY = "#666666"
# An expression for the labels of an axis of differences.
SIGNED = "datum.value ? format(datum.value, '+~g') : '0'"

CONFIG: dict[str, Any] = {
    # The converter ships Liberation Sans, so the layout is the same on every machine. Arial, which
    # readers have, is as wide.
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "background": "white",
    "padding": 8,
    "aria": False,
    "view": {"stroke": None},
    "title": {"color": GREY, "fontSize": 11, "fontWeight": "normal", "lineHeight": 14},
    "axis": {
        "domainColor": GREY,
        "tickColor": GREY,
        "gridColor": "#EBEBEB",
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "text": {"color": INK, "fontSize": 11},
    # A projecting cap would lengthen a bar by half its width.
    "rule": {"strokeCap": "butt"},
    "style": {
        "margin": {"color": "#E4E4E4"},
        "zero": {"color": INK},
        "quiet": {"color": GREY, "strokeWidth": 1},
    },
}


@functools.cache
def spec_of(draw: Callable[[Report], alt.TopLevelMixin | None], report: Report) -> Spec | None:
    """Return the Vega-Lite specification of a report's chart, kept for the file and the page.

    None if the report does not allow the chart.
    """
    # Checking against the schema takes a fifth of the time, and a wrong chart is not drawn anyway.
    with debug_mode(False):
        chart = draw(report)
        return None if chart is None else chart.to_dict(validate=False)


def svg_of(spec: Spec) -> bytes:
    """Return a chart as an SVG file."""
    # Imported here because it loads a JavaScript engine, which only files need.
    from vl_convert import vegalite_to_svg

    svg = vegalite_to_svg(spec, config=CONFIG)
    # Vega counts its ids over all charts of a process. A file must not depend on the others.
    names = dict.fromkeys(re.findall(r'id="(\w+)"', svg))
    numbers = {name: f"id{number}" for number, name in enumerate(names)}
    return re.sub(r'(?<=["#])(clip|gradient_)\d+', lambda found: numbers[found[0]], svg).encode()


def files_of(name: str, spec: Spec | None) -> dict[str, bytes]:
    """Return figures/NAME.svg; empty without a chart."""
    return {} if spec is None else {f"figures/{name}.svg": svg_of(spec)}


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
