"""Charts of altair as SVG files: the same bytes on every machine with the same fonts."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import altair as alt
from altair.utils.schemapi import debug_mode

from rope_exp.errors import visible

T = TypeVar("T")
INK = "#222222"
GREY = "#666666"

# In a dark page, a figure has a dark ground. Turning the hue by half restores the colours that
# the inversion exchanged: blue stays blue.
DARK = (
    "<style>@media (prefers-color-scheme: dark)"
    "{:root{filter:invert(.93) hue-rotate(180deg) brightness(1.3)}}</style>"
)

CONFIG: dict[str, Any] = {
    # The converter ships Liberation Sans, so the layout is the same on every machine that has none
    # of its own: Debian's old version does not kern "11". Arial, which readers have, is as wide.
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


def drawn(draw: Callable[[T], alt.TopLevelMixin | None], report: T) -> bytes | None:
    """Return a chart of a report, or of other data, as an SVG file.

    Args:
        draw: makes the chart, or returns None if the data do not allow it.
        report: what `draw` takes.
    Returns:
        The file, with colours for light and for dark pages; None without a chart.
    """
    # Imported here because it loads a JavaScript engine, which only files need.
    from vl_convert import vegalite_to_svg

    # Checking against the schema takes a fifth of the time.
    with debug_mode(False):
        chart = draw(report)
        if chart is None:
            return None
        # The name of a folder may hold control characters, on which the converter aborts the
        # process. XML does not allow them either.
        svg = vegalite_to_svg(_visible_texts(chart.to_dict(validate=False)), config=CONFIG)
    # Vega counts its ids over all charts of a process. A file must not depend on the others.
    names = dict.fromkeys(re.findall(r'id="(\w+)"', svg))
    numbers = {name: f"id{number}" for number, name in enumerate(names)}
    svg = re.sub(r'(?<=["#])(clip|gradient_)\d+', lambda match: numbers[match[0]], svg)
    return with_dark_form(svg).encode()


def with_dark_form(svg: str) -> str:
    """Return an SVG file that also has colours for dark pages."""
    return re.sub(r"<svg\b[^>]*>", lambda match: match[0] + DARK, svg, count=1)


def _visible_texts(value: Any) -> Any:
    """Return plain values whose texts show control characters as their codes."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible_texts(item) for item in value]
    if isinstance(value, dict):
        return {visible(key): _visible_texts(item) for key, item in value.items()}
    return value
