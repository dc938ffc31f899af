"""Figure 3: differences to the reference against tokens, parameters or length."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence import published
from rope_exp.evidence.comparable import check_blocks, value_of
from rope_exp.evidence.ladders import LEAST_WARMUP, warmed_up
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Line, Report, build
from rope_exp.report.looks import look
from rope_exp.report.paper.along import by_level, companions
from rope_exp.report.paper.labels import End, label_ends
from rope_exp.report.paper.style import (
    GREY,
    INK,
    SMALL,
    WIDTH,
    Style,
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

# Axis labels of factors.
_AXES: Mapping[str, str] = {
    "train.num_steps": "training tokens",
    "model.hidden_size": "parameters",
    "train.seq_len": "training length (tokens)",
}
# Factors with tick labels in thousands and millions.
_LARGE = ("train.num_steps", "model.hidden_size")


@dataclass(frozen=True)
class _Point:
    """A row's difference on one level, with its 95 % interval (NaN if untested)."""

    place: float
    delta: float
    low: float
    high: float


@dataclass(frozen=True)
class _Ladder:
    """The content of the figure: each row's points, with their runs, factor and reports."""

    runs: Sequence[Run]
    factor: str
    reports: Sequence[Report]
    rows: Mapping[str, Line]
    lines: Mapping[str, Sequence[_Point]]

    @property
    def points(self) -> list[_Point]:
        return [point for points in self.lines.values() for point in points]

    @property
    def reference(self) -> str:
        """The name of the reference."""
        return self.reports[0].reference.name

    @property
    def published(self) -> dict[str, float]:
        """The published differences of the rows here; empty unless every level is of that table."""
        if any(report.published is not published.TABLE for report in self.reports):
            return {}
        losses = published.TABLE.losses
        known = [label for label in self.lines if label in losses]
        return {label: losses[label] - losses[published.REFERENCE] for label in known}

    def spell(self, place: float) -> str:
        return engineer(place) if self.factor in _LARGE else f"{place:,g}"


@styled
def ladder(runs: Sequence[Run], factor: str) -> Figure | None:
    """Draw differences to the reference against a factor.

    Args:
        runs: runs of one campaign or several, which are comparable within a level.
        factor: train.num_steps, model.hidden_size, train.seq_len, or another numeric key.
    Returns:
        None if fewer than two levels have a difference.
    Raises:
        ReportError: the runs of a level may not share a table or a block.
    """
    found = _arrange(runs, factor)
    if len({point.place for point in found.points}) < 2:
        return None

    figure = Figure(figsize=(WIDTH, 3.9))
    close_up(figure)
    axes, names, theirs, their_names = figure.subplots(
        1, 4, sharey=True, width_ratios=(10, 3.1, 0.8, 3.6)
    )
    _set_axes(axes, found)
    for label, points in found.lines.items():
        _draw(axes, found.rows[label], points)
    crossings = _crossings(found)
    for place, label in crossings:
        cross: Style = {"color": INK, "markersize": 6, "markeredgewidth": 1.4, "zorder": 6}
        axes.plot(place, 0, "x", gid=f"{label} crosses", **cross)
    if found.published:
        _draw_published(theirs, found)
    else:
        theirs.set_axis_off()
    small_print(figure, *_print(found, crossings))

    freeze(figure)
    label_ends(names, axes, _ends(found))
    spelled = [
        End(label, delta, f"{found.rows[label].name} {delta:+.3f}")
        for label, delta in found.published.items()
    ]
    label_ends(their_names, theirs, spelled)
    return figure


# -- content ---------------------------------------------------------------------------------------


def _arrange(runs: Sequence[Run], factor: str) -> _Ladder:
    reports = []
    for found in by_level(runs, factor).values():
        check_blocks(found)
        reports.append(build(found, ["pe"]))
    # A line needs one reference, so levels with another one are left out.
    reports = [each for each in reports if each.reference.label == reports[0].reference.label]
    rows = {label: row for report in reports for label, row in report.rows.items()}

    lines: dict[str, list[_Point]] = {}
    for report in reports:
        for label, row in report.rows.items():
            if row.ours.delta is None or label == report.reference.label:
                continue
            judged = report.against.get(label)
            low = judged.low if judged else math.nan
            high = judged.high if judged else math.nan
            point = _Point(_place(report, factor), row.ours.delta, low, high)
            lines.setdefault(label, []).append(point)
    return _Ladder(runs, factor, reports, rows, lines)


def _place(report: Report, factor: str) -> float:
    """Return a level's place on the axis."""
    config = report.runs[0].config
    if factor == "train.num_steps":
        return float(config.train.num_tokens)
    if factor == "model.hidden_size":
        # The minimum, because learned frequencies add a few parameters.
        return float(min(run.result["params"] for run in report.runs if run.result))
    return float(value_of(config, factor))


def _crossings(found: _Ladder) -> list[tuple[float, str]]:
    """Return the places where lines cross 0, interpolated linearly on the log axis."""
    crossings = []
    for label, points in found.lines.items():
        for first, second in itertools.pairwise(points):
            if first.delta * second.delta < 0:
                share = first.delta / (first.delta - second.delta)
                place = first.place * (second.place / first.place) ** share
                crossings.append((place, label))
    return sorted(crossings)


def _set_axes(axes: Axes, found: _Ladder) -> None:
    points = found.points
    ends = [end for point in points for end in (point.low, point.high) if not math.isnan(end)]
    means = [*(point.delta for point in points), *found.published.values()]
    axes.set_ylim(limits(means, ends))
    axes.set_ylabel(f"loss minus {found.reference}'s ({found.reports[0].unit})")
    log_axis(axes, {point.place for point in points}, found.spell)
    axes.set_xlabel(_AXES.get(found.factor, found.factor))
    zero_line(axes)


def _draw(axes: Axes, row: Line, points: Sequence[_Point]) -> None:
    style = look(row.label, row.number)
    places = [point.place for point in points]
    deltas = [point.delta for point in points]
    axes.plot(places, deltas, zorder=4, gid=f"{row.label} delta", **style)

    lows = [point.low for point in points]
    highs = [point.high for point in points]
    axes.fill_between(places, lows, highs, color=style["color"], alpha=0.15, linewidth=0, zorder=2)
    # A band between levels with one seed is invisible, so each interval also has a bar.
    axes.vlines(places, lows, highs, color=style["color"], linewidth=0.9, zorder=3)


def _draw_published(axes: Axes, found: _Ladder) -> None:
    """Draw the published differences as a column of marks."""
    axes.set_title("published", fontsize=SMALL, color=GREY, loc="center")
    for label, delta in found.published.items():
        style = look(label) | {"linestyle": "none"}
        axes.plot(0, delta, clip_on=False, zorder=4, gid=f"{label} published", **style)
    zero_line(axes)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlim(-1, 1)


def _ends(found: _Ladder) -> list[End]:
    """Return the ends of lines, with the place of a line that ends before the last level."""
    last = max(point.place for point in found.points)
    ends = []
    for label, points in found.lines.items():
        name = found.rows[label].name
        if points[-1].place < last:
            name += f" (at {found.spell(points[-1].place)})"
        ends.append(End(label, points[-1].delta, name))
    return ends


def _print(found: _Ladder, crossings: Sequence[tuple[float, str]]) -> list[str]:
    counts = [row.ours.num_seeds for report in found.reports for row in report.rows.values()]
    said = [
        f"{groups(found.runs)}; {seeds(filter(None, counts))} a point. Bars and bands: 95 % "
        "intervals, where a point has two seeds."
    ]
    if found.published:
        said.append("Published: about 1B parameters, tokens and length not given.")
    beside = companions(found.runs, found.factor)
    if beside:
        said.append(f"With the axis change {', '.join(beside)}.")
    said += _short_warmups(found)
    if crossings:
        places: dict[str, list[str]] = {}
        for place, label in crossings:
            places.setdefault(found.rows[label].name, []).append(found.spell(place))
        listed = "; ".join(f"{name} at {' and '.join(at)}" for name, at in places.items())
        said.append(
            f"×: where the means cross (untested; straight on the log axis), {found.reference} "
            f"and {listed}."
        )
    return said


def _short_warmups(found: _Ladder) -> list[str]:
    """Name the levels with too short a warmup to be compared with the others."""
    short = []
    for report in found.reports:
        if not warmed_up(report.runs):
            short.append(found.spell(_place(report, found.factor)))
    if not short or len(short) == len(found.reports):
        return []
    listed = ", ".join(short)
    return [f"Fewer than {LEAST_WARMUP} updates of warmup, which rows bear unequally: {listed}."]
