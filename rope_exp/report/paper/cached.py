"""Figure of cache size: differences to the reference against the bytes cached for a token."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.model.count import kept
from rope_exp.report.content import Line, Report
from rope_exp.report.looks import look
from rope_exp.report.paper.style import (
    GREY,
    SMALL,
    WIDTH,
    Style,
    log_axis,
    small_print,
    styled,
    zero_line,
)

# Bytes of a bf16 number, as the axis label says.
_BYTES = 2


class Point(NamedTuple):
    """A row's cached bytes and its loss difference; less is better for both."""

    label: str
    num_bytes: float
    delta: float


@styled
def cached(report: Report) -> Figure | None:
    """Draw our results beside the published ones; None if all rows cache equally much."""
    drawn = [row for row in report.rows.values() if _bytes(row) and row.ours.delta is not None]
    ours = [Point(row.label, _bytes(row), row.ours.delta or 0.0) for row in drawn]
    if len({point.num_bytes for point in ours}) < 2:
        return None

    theirs = _published_points(report, drawn)
    figure = Figure(figsize=(WIDTH, 3.9))
    panels = figure.subplots(1, 2 if theirs else 1, squeeze=False)[0]
    rows = {row.label: row for row in drawn}
    _draw(panels[0], report, rows, ours)
    panels[0].set_ylabel(f"loss minus {report.reference.name}'s ({report.unit})")
    if theirs and report.published:
        panels[0].set_title("ours")
        panels[1].set_title("published")
        _draw(panels[1], None, rows, theirs)

    handles, _ = panels[0].get_legend_handles_labels()
    names = [row.name for row in drawn]
    figure.legend(handles, names, loc="outside upper center", ncols=5, fontsize=SMALL)
    small_print(figure, *_print(report, drawn, bool(theirs)))
    return figure


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


def _draw(
    axes: Axes, report: Report | None, rows: Mapping[str, Line], points: Sequence[Point]
) -> None:
    """Draw points, their intervals if they are ours, and the front."""
    zero_line(axes)
    best = front(points)
    steps: Style = {"color": GREY, "linewidth": 0.8, "drawstyle": "steps-post", "zorder": 2}
    axes.plot([p.num_bytes for p in best], [p.delta for p in best], gid="front", **steps)

    for label, num_bytes, delta in points:
        row = rows[label]
        style = look(label, row.number) | {"linestyle": "none"}
        axes.plot(num_bytes, delta, zorder=4, gid=f"{label} cached", label=row.name, **style)
        judged = report.against.get(label) if report else None
        if judged is not None:
            ends: Style = {"color": style["color"], "linewidth": 1.2, "zorder": 3}
            axes.plot(
                [num_bytes, num_bytes], [judged.low, judged.high], gid=f"{label} interval", **ends
            )

    log_axis(axes, {point.num_bytes for point in points}, lambda value: f"{value:,.0f}")
    axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("bytes cached per token and layer, in bf16")


def _print(report: Report, rows: Sequence[Line], beside: bool) -> list[str]:
    said = [
        f"Group {report.groups}. Grey: Pareto front of the means, where no other row caches as "
        "little at a lower loss. Bars: 95 % intervals, for rows with at least two seeds. Where a "
        "bar crosses the front, membership is open."
    ]
    if beside and report.published:
        said.append(f"Published: {report.published.short}; {report.published.setting}.")
    others = [row.name for row in report.rows.values() if row not in rows]
    if others:
        said.append(f"Not drawn (only a fixed state, or no difference): {', '.join(others)}.")
    return said
