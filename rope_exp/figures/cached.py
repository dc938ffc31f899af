"""Figure of cache size: differences to the reference against the bytes cached for a token."""

import math
from collections.abc import Iterable, Iterator

import altair as alt
import pandas as pd

from rope_exp.comparable import ROW
from rope_exp.figures import _style as style
from rope_exp.report import Figure, Report

_ENDS = ["delta_ci_low", "delta_ci_high"]
_BYTES = 2  # bytes of a bf16 number, as the axis label says


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw our results beside the published ones; None if rows have no names, or cache alike."""
    lines = report.frame.rename_axis("label")
    ours = lines[["delta", *_ENDS]].astype(float)
    ours = ours.assign(num_bytes=_BYTES * lines["cached"].astype(float)).dropna(subset="delta")
    ours = ours[ours["num_bytes"] > 0]
    if ROW not in report.keys or ours["num_bytes"].nunique() < 2:
        return None

    known = pd.Series(report.source.cached, dtype=float)
    theirs = lines.assign(num_bytes=_BYTES * known, delta=lines["published_delta"].astype(float))
    theirs = theirs.loc[ours.index, ["num_bytes", "delta"]].dropna().assign(**dict.fromkeys(_ENDS))
    panels: list[alt.LayerChart] = []
    for title, points in {"ours": ours, "published": theirs}.items():
        places = sorted(set(points["num_bytes"]))
        x = alt.X("num_bytes:Q", title="bytes cached per token and layer, in bf16")
        x = x.scale(type="log", padding=12, nice=False)
        x = x.axis(values=places, format=",", labelAngle=-90, labelOverlap=False)
        y_title = None if panels else f"loss minus {report.reference.name}'s ({report.unit})"
        y = alt.Y("delta:Q", title=y_title).scale(padding=12, nice=False)
        y = y.axis(labelExpr=style.SIGNED, tickCount=5, grid=True)

        base = style.with_looks(report, points.reset_index()).encode(x=x)
        steps = alt.Chart(front(points)).mark_line(style="quiet", interpolate="step-after")
        bars = base.transform_filter(f"isValid(datum.{_ENDS[0]})").mark_rule(strokeWidth=1.5)
        panel = alt.layer(
            style.zero_line(),
            steps.encode(x=x, y=y),
            bars.encode(y=alt.Y(f"{_ENDS[0]}:Q"), y2=alt.Y2(_ENDS[1]), color=style.COLOR),
            *style.markers(base.encode(y=y), size=60),
            title=alt.Title(title),
            width=245,
            height=260,
        )
        if places:
            panels.append(panel)
    title = style.explanation(_sentences(report, ours.index, len(panels) > 1))
    return alt.hconcat(*panels, style.key_of(report, ours.index), spacing=16, title=title)


def front(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points for which no other caches as little and has less loss, by bytes."""
    ordered = points.sort_values(["num_bytes", "delta"])
    best_before = ordered["delta"].cummin().shift(fill_value=math.inf)
    return ordered[ordered["delta"] < best_before]


def _sentences(report: Report, drawn: Iterable[str], beside: bool) -> Iterator[str]:
    yield (
        f"Group {report.groups}. Grey: Pareto front of the means, where no other row caches as "
        "little at a lower loss. Bars: 95 % intervals, for rows with at least two seeds. Where a "
        "bar crosses the front, membership is open."
    )
    if beside:
        yield f"Published: {report.source.short}; {report.source.setting}."
    others = [row.name for label, row in report.rows.items() if label not in drawn]
    if others:
        yield f"Not drawn (only a fixed state, or no difference): {', '.join(others)}."


FIGURE = Figure(order=6, draw=figure)
