"""Drawing of a chart as an SVG file, and the look of all charts."""

import re
from typing import Any

# A Vega-Lite specification.
Spec = dict[str, Any]

INK = "#222222"
GREY = "#666666"

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


def svg_of(spec: Spec) -> bytes:
    """Return a chart as an SVG file."""
    # Imported here because it loads a JavaScript engine, which only files need.
    from vl_convert import vegalite_to_svg

    svg = vegalite_to_svg(spec, config=CONFIG)
    # Vega counts its ids over all charts of a process. A file must not depend on the others.
    names = dict.fromkeys(re.findall(r'id="(\w+)"', svg))
    numbers = {name: f"id{number}" for number, name in enumerate(names)}
    return re.sub(r'(?<=["#])(clip|gradient_)\d+', lambda found: numbers[found[0]], svg).encode()
