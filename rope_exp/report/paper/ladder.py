"""Figure 3: how differences to the reference go with tokens, parameters or length."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence import published
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Line, Report, build
from rope_exp.report.looks import look
from rope_exp.report.paper.labels import End, label_ends
from rope_exp.report.paper.levels import by_level, companions
from rope_exp.report.paper.style import (
    GREY,
    INK,
    SMALL,
    UNIT,
    WIDTH,
    close_up,
    engineer,
    freeze,
    groups,
    limits,
    log_axis,
    seeds,
    small_print,
    styled,
    zero_line,
)

# What the axis of a factor is called.
AXES: Mapping[str, str] = {
    "train.num_steps": "training tokens",
    "model.hidden_size": "parameters",
    "train.seq_len": "training length (tokens)",
}


@dataclass(frozen=True)
class _Point:
    """A row's difference on one level, with its 95 % interval where there is one."""

    place: float
    delta: float
    low: float
    high: float


@styled
def ladder(runs: Sequence[Run], factor: str) -> Figure | None:
    """Draw differences to the reference against a factor.

    Args:
        runs: of one campaign or several; within a level comparable, row by row.
        factor: train.num_steps, model.hidden_size, train.seq_len, or another key that is a number.
    Returns:
        None where fewer than two levels have a difference.
    Raises:
        ReportError: the runs of a level may not share a table.
    """
    levels = {value: build(found, ["pe"]) for value, found in by_level(runs, factor).items()}
    places = {value: _place(report, factor, value) for value, report in levels.items()}
    lines = _lines(levels, places)
    reached = {point.place for points in lines.values() for point in points}
    if len(reached) < 2:
        return None

    rows = {label: row for report in levels.values() for label, row in report.rows.items()}
    figure = Figure(figsize=(WIDTH, 3.9))
    axes, names, theirs, their_names = figure.subplots(
        1, 4, sharey=True, width_ratios=(10, 3.1, 0.8, 3.6)
    )
    close_up(figure)
    _set_axes(axes, lines, reached, next(iter(levels.values())))
    axes.set_xlabel(AXES.get(factor, factor))
    crossings = _crossings(lines, rows)
    for label, points in lines.items():
        _draw(axes, rows[label], points)
    for place, _ in crossings:
        axes.plot(place, 0, "x", color=INK, markersize=6, markeredgewidth=1.4, zorder=6)
    _draw_published(theirs, lines)
    small_print(figure, *_print(runs, factor, levels, crossings))

    freeze(figure)
    label_ends(names, axes, _ends(lines, rows))
    label_ends(their_names, theirs, _published_ends(lines, rows))
    return figure


# -- what is drawn ---------------------------------------------------------------------------------


def _place(report: Report, factor: str, value: float) -> float:
    """Return where a level stands on the axis."""
    if factor == "train.num_steps":
        return float(report.runs[0].config.train.num_tokens)
    if factor == "model.hidden_size":
        # Learned frequencies would add a few.
        counted = [run.result["params"] for run in report.runs if run.result]
        return float(min(counted)) if counted else math.nan
    return value


def _lines(
    levels: Mapping[float, Report], places: Mapping[float, float]
) -> dict[str, list[_Point]]:
    """Return each row's points, but the reference's."""
    lines: dict[str, list[_Point]] = {}
    for value, report in levels.items():
        for label, row in report.rows.items():
            if row.ours.delta is None or label == report.reference.label:
                continue
            judged = report.against.get(label)
            low = judged.low if judged else math.nan
            high = judged.high if judged else math.nan
            point = _Point(places[value], row.ours.delta, low, high)
            lines.setdefault(label, []).append(point)
    return lines


def _crossings(
    lines: Mapping[str, Sequence[_Point]], rows: Mapping[str, Line]
) -> list[tuple[float, str]]:
    """Return where lines cross the reference's, straight between two levels of the log axis."""
    found = []
    for label, points in lines.items():
        for first, second in itertools.pairwise(points):
            if first.delta * second.delta < 0:
                share = first.delta / (first.delta - second.delta)
                place = first.place * (second.place / first.place) ** share
                found.append((place, rows[label].name))
    return sorted(found)


def _draw(axes: Axes, row: Line, points: Sequence[_Point]) -> None:
    style = look(row.label, row.number)
    places = [point.place for point in points]
    deltas = [point.delta for point in points]
    axes.plot(places, deltas, zorder=4, gid=f"{row.label} delta", **style)

    lows = [point.low for point in points]
    highs = [point.high for point in points]
    axes.fill_between(places, lows, highs, color=style["color"], alpha=0.15, linewidth=0, zorder=2)
    # Between levels of one seed a band has no width to be seen, so each interval has a bar too.
    axes.vlines(places, lows, highs, color=style["color"], linewidth=0.9, zorder=3)


def _draw_published(axes: Axes, lines: Mapping[str, Sequence[_Point]]) -> None:
    """Draw the published differences as a column of marks."""
    axes.set_title("published", fontsize=SMALL, color=GREY, loc="center")
    for label, delta in _published(lines).items():
        style = look(label) | {"linestyle": "none"}
        axes.plot(0, delta, clip_on=False, zorder=4, gid=f"{label} published", **style)
    zero_line(axes)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlim(-1, 1)


def _published(lines: Mapping[str, Sequence[_Point]]) -> dict[str, float]:
    losses = published.LOSSES
    known = [label for label in lines if label in losses]
    return {label: losses[label] - losses[published.REFERENCE] for label in known}


def _set_axes(
    axes: Axes, lines: Mapping[str, Sequence[_Point]], reached: set[float], report: Report
) -> None:
    points = [point for row in lines.values() for point in row]
    ends = [end for point in points for end in (point.low, point.high) if not math.isnan(end)]
    means = [*(point.delta for point in points), *_published(lines).values()]
    axes.set_ylim(limits(means, ends))
    axes.set_ylabel(f"loss minus {report.reference.name}'s ({UNIT})")
    log_axis(axes, reached, engineer)
    zero_line(axes)


def _ends(lines: Mapping[str, Sequence[_Point]], rows: Mapping[str, Line]) -> list[End]:
    """Return the ends of lines; a line that ends before the last level says where."""
    last = max(point.place for points in lines.values() for point in points)
    ends = []
    for label, points in lines.items():
        name = rows[label].name
        if points[-1].place < last:
            name += f" (at {engineer(points[-1].place)})"
        ends.append(End(label, points[-1].delta, name))
    return ends


def _published_ends(lines: Mapping[str, Sequence[_Point]], rows: Mapping[str, Line]) -> list[End]:
    known = _published(lines).items()
    return [End(label, delta, f"{rows[label].name} {delta:+.3f}") for label, delta in known]


def _print(
    runs: Sequence[Run],
    factor: str,
    levels: Mapping[float, Report],
    crossings: Sequence[tuple[float, str]],
) -> list[str]:
    counts = [row.ours.num_seeds for report in levels.values() for row in report.rows.values()]
    said = [
        f"{groups(runs)}; {seeds(counts)} a point. Bars and bands: 95 % intervals, where a point "
        "has two seeds. Published: about 1B parameters, tokens and length not given."
    ]
    beside = companions(runs, factor)
    if beside:
        said.append(f"With the axis change {', '.join(beside)}.")
    if crossings:
        reference = next(iter(levels.values())).reference.name
        names: dict[str, list[str]] = {}
        for place, name in crossings:
            names.setdefault(engineer(place), []).append(name)
        listed = "; ".join(f"{', '.join(names[at])} at {at}" for at in names)
        said.append(f"×: crosses {reference} (straight on the log axis): {listed}.")
    return said
