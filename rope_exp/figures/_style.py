"""The look of rows, and what charts share.

Hue and fill of a subset's marker show which of Q and K rotate, and dash and shape which of V and O.
"""

import hashlib
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import altair as alt
import pandas as pd

from rope_exp.comparable import UNROTATED, Row
from rope_exp.report import Report
from rope_exp.sections import SUBSETS
from rope_exp.stats import MARGIN
from rope_exp.tables import span

# The sites of each subset, by the label of its row.
SITES_OF = {f"{''.join(sites)}_rope" if sites else UNROTATED: sites for sites in SUBSETS}

# After Paul Tol's "high contrast" scheme: distinct for colour-blind readers and in grey.
_HUES = {"": "#BB5566", "q": "#000000", "k": "#C8961E", "qk": "#004488"}
# Pixels of line and gap in turn.
_DASHES: dict[str, list[float]] = {"": [1, 0], "v": [7, 3], "o": [7, 3, 2, 3], "vo": [2, 3]}
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
_CUSTOM_DASH = [12.0, 2.4, 2.4, 2.4, 2.4, 2.4]
# The meaning of a variant's `look`, in words.
LEGEND = (
    "Colour and marker fill show which of Q and K rotate; marker shape and the dash of a line, "
    "which of V and O."
)
COLOR = alt.Color("color:N", scale=None)
# An expression for the labels of an axis of differences.
SIGNED = "datum.value ? format(datum.value, '+~g') : '0'"


def look(label: str, number: int = 0) -> dict[str, Any]:
    """Return a row's `color` and `dash`, and the paths `outline` and `filled` of its marker.

    A variant looks the same everywhere; a setting, such as optim.lr=0.003, by its row's number.
    """
    if label in SITES_OF:
        scores, values = parts(label)
        color, dash = _HUES[scores], _DASHES[values]
        outline, left, right = _MARKERS[values]
        filled = {"": "M0,0Z", "q": left, "k": right, "qk": outline}[scores]
    else:
        is_setting = "=" in label
        digest = hashlib.sha256(label.encode()).hexdigest()
        # Different digits choose hue and marker. After nine settings, hues have other markers.
        place = 10 * number if is_setting else int(digest, 16)
        color, dash = _OTHER_HUES[place % 9], _DASHES[""] if is_setting else _CUSTOM_DASH
        outline = _OTHER_MARKERS[place // 9 % 9]
        filled = outline
    return {"color": color, "dash": dash, "outline": outline, "filled": filled}


def parts(label: str) -> tuple[str, str]:
    """Return which of Q and K and which of V and O a subset rotates, such as ("qk", "v")."""
    sites = "".join(SITES_OF[label])
    return sites.rstrip("vo"), sites.lstrip("qk")


def limits(means: Iterable[float], ends: Iterable[float] = ()) -> tuple[float, float]:
    """Return the limits of an axis of differences: 0, every mean, and ends of intervals.

    Intervals extend each side by at most half the range of the means, or two margins. So one noisy
    row leaves the others readable.
    """
    low, *_, high = sorted([0.0, 0.0, *means])
    width = max(high - low, 4 * MARGIN)

    low = max(min([low, *ends]), low - width / 2)
    high = min(max([high, *ends]), high + width / 2)
    pad = 0.04 * max(high - low, width)
    return low - pad, high + pad


def zero_line() -> alt.Chart:
    """Return a line at 0, for a vertical axis of differences."""
    rule = alt.Chart().mark_rule(style="zero")
    return rule.encode(y=alt.YDatum(0, type="quantitative"))


def with_looks(report: Report, table: pd.DataFrame) -> alt.Chart:
    """Return a chart of a table with a column `label`, and add the columns of the rows' looks."""
    looks = {row.label: look(row.label, row.number) for row in report.rows.values()}
    return alt.Chart(table.join(pd.DataFrame(looks).T, on="label"))


def row_lines(base: alt.Chart, width: float, detail: str = "label", **mark: Any) -> alt.Chart:
    """Draw a line for each value of a column.

    Args:
        base: a chart with x, y and the columns of the rows' looks (`with_looks`).
        width: of the lines, in pixels.
        detail: the column.
        mark: other properties of the lines, by altair's names.
    Returns:
        The chart.
    """
    line = base.mark_line(strokeWidth=width, **mark).encode(color=COLOR)
    return line.encode(strokeDash=alt.StrokeDash("dash:N", scale=None), detail=f"{detail}:N")


def markers(base: alt.Chart, size: int) -> Iterator[alt.Chart]:
    """Draw markers: the outline on white, and the part that is filled."""
    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=1.2, fill="white")
    stroke = alt.Stroke("color:N", scale=None)
    yield mark.encode(shape=alt.Shape("outline:N", scale=None), stroke=stroke)

    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=0)
    fill = alt.Fill("color:N", scale=None)
    yield mark.encode(shape=alt.Shape("filled:N", scale=None), fill=fill)


def key_of(report: Report, labels: Iterable[str]) -> alt.LayerChart:
    """Return a list of rows' markers and names, to stand beside a chart."""
    table = pd.DataFrame([(label, report.rows[label].name) for label in labels])
    table = table.set_axis(["label", "name"], axis="columns")
    y = alt.Y("name:N", axis=None, sort=list(table["name"]))
    base = with_looks(report, table).encode(x=alt.XValue(8), y=y)
    names = base.mark_text(align="left", dx=14).encode(text="name:N")
    return alt.layer(*markers(base, size=60), names, width=16, height=alt.Step(17))


def seeds(counts: Iterable[int]) -> str:
    """Return the number of seeds as text, or its range if rows differ."""
    spelled = span(counts)
    return "one seed" if spelled == "1" else f"{spelled} seeds"


def explanation(sentences: Iterable[str]) -> alt.Title:
    """Return a title below a chart that explains it."""
    lines = textwrap.wrap(" ".join(sentences), width=116)
    return alt.Title(lines, orient="bottom", anchor="start", frame="bounds", offset=14)


def row_texts(report: Report, row: Row) -> dict[str, Any]:
    """Return a row's differences as numbers and text; `half` is half of the interval's width."""
    line = report.lines[row.label]
    delta, low, high = (line[key] for key in ("delta", "delta_ci_low", "delta_ci_high"))
    interval = "" if low is None else f" [{signed(low)}, {signed(high)}]"
    half = "" if low is None else f"± {high - delta:.4f} "
    is_reference = row.label == report.reference.label
    untested = "no shared seed" if delta is None else "untested"
    verdict = report.verdict(row, for_readers=True) or line["verdict"]
    if not verdict:
        verdict = f"{'reference' if is_reference else untested} {row.mark}".rstrip()
    return {
        "label": row.label,
        "delta": delta,
        "published_delta": line["published_delta"],
        "number": signed(delta),
        "difference": signed(delta) + interval,
        "half": half,
        "seeds": row.status or f"{line['num_seeds']} {row.mark}".rstrip(),
        "verdict": verdict,
        "published": "" if is_reference else signed(line["published_delta"], digits=3),
    }


def signed(value: float | None, digits: int = 4) -> str:
    """Return a difference with its sign; empty for None."""
    if value is None:
        return ""
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"
