"""Figure of cache size: differences to the reference against the bytes cached for a token."""

import math
from collections.abc import Iterator, Sequence

import altair as alt
import pandas as pd

from rope_exp.comparable import ROW, Row
from rope_exp.figures.style import (
    COLOR,
    SIGNED,
    explanation,
    key_of,
    looks,
    markers,
    with_looks,
    zero_line,
)
from rope_exp.report import Report

ORDER = 6
_PANEL = {"width": 245, "height": 260}
# Bytes of a bf16 number, as the axis label says.
_BYTES = 2


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw our results beside the published ones.

    None if rows are told apart by more than a name, or all cache equally much.
    """
    if ROW not in report.keys:
        return None
    lines = report.frame.set_index(pd.Index(report.rows, name="label")).dropna(subset="delta")
    lines = lines[lines["cached"].fillna(0) > 0]
    ours = _points(lines["cached"], lines.filter(["delta", "delta_ci_low", "delta_ci_high"]))
    if ours["num_bytes"].nunique() < 2:
        return None

    y_title = f"loss minus {report.reference.name}'s ({report.unit})"
    panels = [_panel("ours", y_title, ours)]
    known = report.published.cached if report.published else {}
    numbers = pd.Series(known, dtype="Int64").reindex(lines.index)
    theirs = _points(numbers, lines.filter(["published_delta"]))
    if len(theirs):
        panels.append(_panel("published", None, theirs))
    drawn = [report.rows[label] for label in ours["label"]]
    return alt.hconcat(
        *panels,
        key_of(drawn),
        spacing=16,
        datasets=looks(report),
        title=explanation(_sentences(report, drawn, len(theirs) > 0)),
    )


def front(points: pd.DataFrame) -> pd.DataFrame:
    """Return the Pareto front: points for which no other caches as little and has less loss.

    Points are ordered by bytes; of equal points, only the first is returned.
    """
    ordered = points.sort_values(["num_bytes", "delta"])
    best_before = ordered["delta"].cummin().shift(fill_value=math.inf)
    return ordered[ordered["delta"] < best_before]


def _points(numbers: pd.Series, lines: pd.DataFrame) -> pd.DataFrame:
    """Return a point for each row with a number that it caches, a difference, and its interval."""
    points = lines.set_axis(["delta", "low", "high"][: lines.shape[1]], axis="columns")
    points = points.reindex(columns=["delta", "low", "high"]).assign(num_bytes=_BYTES * numbers)
    found = points.dropna(subset=["num_bytes", "delta"]).astype(float)
    return found.astype({"num_bytes": int}).reset_index()


def _panel(title: str, y_title: str | None, points: pd.DataFrame) -> alt.LayerChart:
    """Draw points, the intervals of those that have one, and the front."""
    places = sorted(set(points["num_bytes"]))
    x = alt.X("num_bytes:Q", title="bytes cached per token and layer, in bf16")
    x = x.scale(type="log", padding=12, nice=False)
    x = x.axis(values=places, format=",", labelAngle=-90, labelOverlap=False)
    y = (
        alt.Y("delta:Q", title=y_title)
        .scale(padding=12, nice=False)
        .axis(labelExpr=SIGNED, tickCount=5, grid=True)
    )

    bars = with_looks(points.dropna(subset="low")).mark_rule(strokeWidth=1.5)
    steps = alt.Chart(front(points)).mark_line(style="quiet", interpolate="step-after")
    return alt.layer(
        zero_line(),
        steps.encode(x=x, y=y),
        bars.encode(x=x, y=alt.Y("low:Q"), y2=alt.Y2("high"), color=COLOR),
        *markers(with_looks(points).encode(x=x, y=y), size=60),
        title=alt.Title(title),
        **_PANEL,
    )


def _sentences(report: Report, rows: Sequence[Row], beside: bool) -> Iterator[str]:
    yield (
        f"Group {report.groups}. Grey: Pareto front of the means, where no other row caches as "
        "little at a lower loss. Bars: 95 % intervals, for rows with at least two seeds. Where a "
        "bar crosses the front, membership is open."
    )
    if beside and report.published:
        yield f"Published: {report.published.short}; {report.published.setting}."
    others = [row.name for row in report.rows.values() if row not in rows]
    if others:
        yield f"Not drawn (only a fixed state, or no difference): {', '.join(others)}."
