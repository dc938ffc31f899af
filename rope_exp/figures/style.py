"""The look of a row: its colour, marker and dash, which depend only on its label.

A variant looks the same in every figure. For the 16 subsets, the hue and the fill of the marker
show which of Q and K rotate, and the dash and the shape of the marker which of V and O. No two are
alike, even in grey. A user's own variants have other hues, other markers and their own dash.
"""

import hashlib
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode
from scipy.optimize import isotonic_regression

from rope_exp.comparable import Row
from rope_exp.report import SITES_OF, Report
from rope_exp.stats import MARGIN

# After Paul Tol's "high contrast" scheme: distinct for colour-blind readers and in grey.
_HUES = {"": "#BB5566", "q": "#000000", "k": "#C8961E", "qk": "#004488"}
# Pixels of line and gap in turn.
_DASHES = {"": [1, 0], "v": [7, 3], "o": [7, 3, 2, 3], "vo": [2, 3]}
# SVG paths of the markers, from -1 to 1: the outline, its left half and its right half.
_MARKERS = {
    "": (
        "M0,-1A1,1,0,0,1,0,1A1,1,0,0,1,0,-1Z",
        "M0,-1A1,1,0,0,0,0,1Z",
        "M0,-1A1,1,0,0,1,0,1Z",
    ),
    "v": ("M0,1L1,-.8L-1,-.8Z", "M0,1L0,-.8L-1,-.8Z", "M0,1L0,-.8L1,-.8Z"),
    "o": ("M0,-1L1,.8L-1,.8Z", "M0,-1L0,.8L-1,.8Z", "M0,-1L0,.8L1,.8Z"),
    "vo": ("M0,-1.1L1.1,0L0,1.1L-1.1,0Z", "M0,-1.1L0,1.1L-1.1,0Z", "M0,-1.1L0,1.1L1.1,0Z"),
}

# Paul Tol's "muted" scheme, for rows that are no subset.
_OTHER_HUES = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#CC6677",
    "#117733",
    "#777777",
    "#DDCC77",
    "#882255",
    "#AA4499",
)
# A square, a plus, two triangles, a pentagon, a hexagon, a cross, a star and a thin diamond.
_OTHER_MARKERS = (
    "M-.85,-.85L.85,-.85L.85,.85L-.85,.85Z",
    "M-.35,-1L.35,-1L.35,-.35L1,-.35L1,.35L.35,.35L.35,1L-.35,1L-.35,.35L-1,.35L-1,-.35L-.35,-.35Z",
    "M-1,0L.8,-1L.8,1Z",
    "M1,0L-.8,-1L-.8,1Z",
    "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z",
    "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
    "M0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0L-1,-.5L-.5,-1Z",
    "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.89L0,.44L-.65,.89L-.42,.14L-1.05,-.34L-.26,-.36Z",
    "M0,-1.2L.7,0L0,1.2L-.7,0Z",
)
_OWN_DASH = [12.0, 2.4, 2.4, 2.4, 2.4, 2.4]


def look(label: str, number: int = 0) -> dict[str, Any]:
    """Return the look of a row: `color`, `dash`, and the marker's paths `outline` and `filled`.

    Args:
        label: a variant, which looks the same everywhere, or a setting such as optim.lr=0.003.
        number: the row's place, which determines the look of rows that are not variants.
    """
    if found := parts(label):
        scores, values = found
        outline, left, right = _MARKERS[values]
        filled = {"": "M0,0Z", "q": left, "k": right, "qk": outline}[scores]
        return _look(_HUES[scores], _DASHES[values], outline, filled)
    if "=" in label:
        # After nine rows, the hues repeat with other markers.
        marker = _OTHER_MARKERS[(number + number // 9) % 9]
        return _look(_OTHER_HUES[number % 9], _DASHES[""], marker, marker)

    # Different digits of one hash choose hue and marker, so they vary independently.
    place = int(hashlib.sha256(label.encode()).hexdigest(), 16)
    marker = _OTHER_MARKERS[place // 9 % 9]
    return _look(_OTHER_HUES[place % 9], _OWN_DASH, marker, marker)


def parts(label: str) -> tuple[str, str] | None:
    """Return which of Q and K and which of V and O a subset rotates, such as ("qk", "v").

    None for a label that is no subset of the sites.
    """
    if label not in SITES_OF:
        return None
    sites = "".join(SITES_OF[label])
    return sites.rstrip("vo"), sites.lstrip("qk")


def _look(color: str, dash: list[Any], outline: str, filled: str) -> dict[str, Any]:
    return {"color": color, "dash": dash, "outline": outline, "filled": filled}


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


Draw = Callable[[Report], alt.TopLevelMixin | None]

# An expression for the labels of an axis of differences.
SIGNED = "datum.value ? format(datum.value, '+~g') : '0'"


def drawn(draw: Draw, report: Report) -> bytes | None:
    """Return a report's chart as an SVG file; None if the report does not allow the chart."""
    # Checking against the schema takes a fifth of the time, and a wrong chart is not drawn anyway.
    with debug_mode(False):
        chart = draw(report)
        return None if chart is None else svg_of(chart.to_dict(validate=False))


def limits(means: Iterable[float], ends: Iterable[float] = ()) -> tuple[float, float]:
    """Return the limits of an axis of differences: 0, every mean, and ends of intervals.

    Intervals may extend the axis on each side by at most half the range of the means, or two
    margins if that is more. So one noisy row leaves the others readable; its interval is cut off.
    """
    low, *_, high = sorted([0.0, 0.0, *means])
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
    inside["place"] = spread(list(inside["end"]), gap, low + gap / 2, high - gap / 2)

    base = alt.Chart(inside)
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
    return placed.tolist()


LOOKS = "looks"
COLOR = alt.Color("color:N", scale=None)
DASH = alt.StrokeDash("dash:N", scale=None)


def in_words(report: Report, row: Row) -> dict[str, Any]:
    """Return a row's differences, and the words about them.

    Intervals are the table's own: in full in `difference`, and half of its width in `half`.
    """
    line = report.lines[row.label]
    delta, low, high = (line[key] for key in ("delta", "delta_ci_low", "delta_ci_high"))
    theirs = line["published_delta"]
    words = {
        "label": row.label,
        "name": row.name,
        "delta": delta,
        "theirs": theirs,
        "number": signed(delta),
        "difference": signed(delta),
        "half": "",
        "seeds": row.verdict or f"{line['num_seeds']} {row.mark}".rstrip(),
        "published": signed(theirs, digits=3),
    }
    if low is not None:
        words["difference"] += f" [{signed(low)}, {signed(high)}]"
        words["half"] = f"± {high - delta:.4f} "
        return words | {"verdict": line["verdict"]}
    word = "no shared seed" if delta is None else "untested"
    if row.label == report.reference.label:
        word = "reference"
        words["published"] = ""
    return words | {"verdict": row.verdict or f"{word} {row.mark}".rstrip()}


def signed(value: float | None, digits: int = 4) -> str:
    """Return a difference with its sign; empty for None."""
    if value is None:
        return ""
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"


def with_looks(table: pd.DataFrame) -> alt.Chart:
    """Return a chart of a table with a column `label`, and columns for the looks of the rows."""
    fields = ["color", "dash", "outline", "filled"]
    found = alt.LookupData(alt.NamedData(LOOKS), key="label", fields=fields)
    return alt.Chart(table).transform_lookup("label", from_=found)


def looks(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the data set of `with_looks`, for the whole chart: Altair copies that of a part."""
    rows = report.rows.values()
    return {LOOKS: [{"label": row.label, **look(row.label, row.number)} for row in rows]}


def row_lines(base: alt.Chart, width: float, *details: str, clip: bool = False) -> alt.Chart:
    """Draw a line for each row, or for each combination of these fields."""
    detail = [alt.Detail(field) for field in details or ("label:N",)]
    line = base.mark_line(clip=clip, strokeWidth=width)
    return line.encode(color=COLOR, strokeDash=DASH, detail=detail)


def markers(base: alt.Chart, size: int) -> Iterator[alt.Chart]:
    """Draw markers: the outline on white, and the part that is filled."""
    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=1.2, fill="white")
    stroke = alt.Stroke("color:N", scale=None)
    yield mark.encode(shape=alt.Shape("outline:N", scale=None), stroke=stroke)

    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=0)
    fill = alt.Fill("color:N", scale=None)
    yield mark.encode(shape=alt.Shape("filled:N", scale=None), fill=fill)


def gathered(tables: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """Return the lines of all tables; those without any would change the types of columns."""
    found = [table for table in tables if len(table)]
    return pd.concat(found) if found else pd.DataFrame(columns=columns)


def key_of(rows: Sequence[Row]) -> alt.LayerChart:
    """Return a list of the rows' markers and names, to stand beside a chart."""
    table = pd.DataFrame([{"label": row.label, "name": row.name} for row in rows])
    y = alt.Y("name:N", axis=None, sort=list(table["name"]))
    base = with_looks(table).encode(x=alt.XValue(8), y=y)
    names = base.mark_text(align="left", dx=14).encode(text=alt.Text("name:N"))
    return alt.layer(*markers(base, size=60), names, width=16, height=alt.Step(17))
