"""Figure of cache size: differences to the reference against the bytes cached for a token."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from rope_exp.model.count import kept
from rope_exp.report.charts.rows import COLOR, key_of, looks, markers, with_looks
from rope_exp.report.charts.style import SIGNED, explanation, zero_line
from rope_exp.report.content import Line, Report

_PANEL = {"width": 245, "height": 260}
# Bytes of a bf16 number, as the axis label says.
_BYTES = 2


class Point(NamedTuple):
    """A row's cached bytes and its loss difference; less is better for both."""

    label: str
    num_bytes: float
    delta: float


def cached(report: Report) -> alt.HConcatChart | None:
    """Draw our results beside the published ones; None if all rows cache equally much."""
    drawn = [row for row in report.rows.values() if _bytes(row) and row.ours.delta is not None]
    ours = [Point(row.label, _bytes(row), row.ours.delta or 0.0) for row in drawn]
    if len({point.num_bytes for point in ours}) < 2:
        return None

    y_title = f"loss minus {report.reference.name}'s ({report.unit})"
    panels = [_panel("ours", y_title, ours, report)]
    theirs = _published_points(report, drawn)
    if theirs:
        panels.append(_panel("published", None, theirs))
    return alt.hconcat(
        *panels,
        key_of(drawn),
        spacing=16,
        datasets=looks(report),
        title=explanation(_sentences(report, drawn, bool(theirs))),
    )


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front: points for which no other caches as little and has less loss.

    Points are ordered by bytes; of equal points, only the first is returned.
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.num_bytes, point.delta)):
        if not best or point.delta < best[-1].delta:
            best.append(point)
    return best


def _bytes(row: Line) -> int:
    """Return the bytes that a layer caches for a token; 0: only a fixed-size state, or unknown."""
    config = row.runs[0].config
    return _BYTES * (kept(config.attn, config.model, config.pe)[0] or 0)


def _published_points(report: Report, rows: Sequence[Line]) -> list[Point]:
    """Return points for rows with published differences and cache sizes."""
    if report.published is None:
        return []
    numbers = report.published.cached
    return [
        Point(row.label, _BYTES * numbers[row.label], row.theirs.delta)
        for row in rows
        if row.label in numbers and row.theirs.delta is not None
    ]


def _panel(
    title: str, y_title: str | None, points: Sequence[Point], report: Report | None = None
) -> alt.LayerChart:
    """Draw points, their intervals if they are ours, and the front."""
    table = pd.DataFrame(points)
    places = sorted(set(table["num_bytes"]))
    x = alt.X("num_bytes:Q", title="bytes cached per token and layer, in bf16")
    x = x.scale(type="log", padding=12, nice=False)
    x = x.axis(values=places, format=",", labelAngle=-90, labelOverlap=False)
    y = (
        alt.Y("delta:Q", title=y_title)
        .scale(padding=12, nice=False)
        .axis(labelExpr=SIGNED, tickCount=5, grid=True)
    )

    against = report.against if report else {}
    judged = [
        (label, num_bytes, against[label]) for label, num_bytes, _ in points if label in against
    ]
    bars = pd.DataFrame(
        [(label, num_bytes, each.low, each.high) for label, num_bytes, each in judged],
        columns=["label", "num_bytes", "low", "high"],
    ).astype({"low": float, "high": float})
    steps = alt.Chart(pd.DataFrame(front(points)))
    return alt.layer(
        zero_line(),
        steps.mark_line(style="quiet", interpolate="step-after").encode(x=x, y=y),
        with_looks(bars)
        .mark_rule(strokeWidth=1.5)
        .encode(x=x, y=alt.Y("low:Q"), y2=alt.Y2("high"), color=COLOR),
        *markers(with_looks(table).encode(x=x, y=y), size=60),
        title=alt.Title(title),
        **_PANEL,
    )


def _sentences(report: Report, rows: Sequence[Line], beside: bool) -> Iterator[str]:
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
