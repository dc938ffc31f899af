"""Figure 5: the published order beside ours, with bars that join rows not distinguished."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from rope_exp.evidence.published import Published
from rope_exp.report.content import Line, Report
from rope_exp.report.looks import look
from rope_exp.report.paper.style import GREY, INK, SMALL, WIDTH, Style, freeze, small_print, styled

# Signs of pairs that are about equal, and of pairs that are unresolved.
_EQUAL = "≈"
_OPEN = "?"
# The distance between parallel bars, in widths of the slopes.
_LANE = 0.1

# Rows that are not distinguished, and the sign between them.
Joined = tuple[Sequence[str], str]


@styled
def ranks(report: Report) -> Figure | None:
    """Draw a slope for each published row with a rank here; None with fewer than two."""
    rows = [
        row for row in report.rows.values() if row.ours.rank and row.theirs.loss_mean is not None
    ]
    if report.published is None or len(rows) < 2:
        return None

    ours = _ranked({row.label: row.ours.rank or 0 for row in rows})
    theirs = _ranked({row.label: row.theirs.rank or 0 for row in rows})
    figure = Figure(figsize=(WIDTH, 1.2 + 0.24 * len(rows)))
    axes = figure.subplots()
    for row in rows:
        ends = [theirs[row.label], ours[row.label]]
        axes.plot([0, 1], ends, gid=f"{row.label} rank", **look(row.label, row.number))
    _set_axes(axes, len(rows), report.unit)
    small_print(figure, *_print(report, len(rows)))

    freeze(figure)
    ties = _published_ties(report.published, theirs)
    _join(axes, ties, theirs, _name(axes, rows, theirs, 0), -1)
    _join(axes, _unseparated(report, ours), ours, _name(axes, rows, ours, 1), 1)
    return figure


def _ranked(places: dict[str, int]) -> dict[str, int]:
    """Return ranks among only these rows; equal ones share the better rank."""
    return {
        label: 1 + sum(other < place for other in places.values())
        for label, place in places.items()
    }


def _name(axes: Axes, rows: Sequence[Line], ranked: dict[str, int], side: int) -> float:
    """Write names, losses and ranks at one end, and return how far out they reach.

    Rows that share a rank are listed below one another, in the places of the following ranks.
    """
    texts = []
    for rank in sorted(set(ranked.values())):
        tied = [row for row in rows if ranked[row.label] == rank]
        shown = f"{rank}" if len(tied) == 1 else f"={rank}"
        for place, row in enumerate(tied):
            value = f"{row.ours.loss_mean:.4f}" if side else f"{row.theirs.loss_mean:.3f}"
            said = f"{shown}  {row.name}  {value}" if side else f"{row.name}  {value}  {shown}"
            gid = f"{row.label} {'ours' if side else 'published'}"
            style: Style = {"va": "center_baseline", "color": INK, "gid": gid}
            style["ha"] = "left" if side else "right"
            texts.append(axes.text(1.05 if side else -0.05, rank + place, said, **style))

    to_data = axes.transData.inverted()
    boxes = [to_data.transform_bbox(text.get_window_extent()) for text in texts]
    return float(max(box.x1 for box in boxes) if side else min(box.x0 for box in boxes))


def _set_axes(axes: Axes, count: int, unit: str) -> None:
    axes.set(xlim=(-1.05, 2.05), ylim=(count + 0.5, 0.5))
    style: Style = {"color": GREY, "fontsize": SMALL}
    axes.text(0, 0.3, f"published, loss ({unit})", ha="right", va="bottom", **style)
    axes.text(1, 0.3, f"ours, mean loss ({unit})", ha="left", va="bottom", **style)
    axes.set_axis_off()


def _print(report: Report, count: int) -> list[str]:
    corpus = report.runs[0].config.data.name
    tested = (
        f'"{_EQUAL}" equivalent within the margin, "{_OPEN}" not settled, by the tests of all '
        f"{len(report.pairs)} pairs."
    )
    if not report.pairs:
        tested = "no two seeds, so nothing is tested and none of the order is settled."
    signs = "untested"
    if report.published and report.published.order:
        signs = f'"{_EQUAL}" and "/" as the source writes them, untested'
    return [
        f"Group {report.groups}, corpus {corpus}; ranks among the {count} that both have. Bars, "
        "and arcs where they are no neighbours, join what is not told apart. Published: "
        f"{signs}. Ours: {tested}"
    ]


# -- joined rows -----------------------------------------------------------------------------------


def _published_ties(published: Published, known: Collection[str]) -> list[Joined]:
    """Return the rows that the source joins by ≈ or /, with that sign."""
    if not published.order:
        return []
    ordered = iter(published.losses)
    found: list[Joined] = []
    for words in published.order.split(">"):
        size = len(re.split("[≈/]", words))
        members = [label for label in itertools.islice(ordered, size) if label in known]
        if len(members) > 1:
            found.append((members, _EQUAL if _EQUAL in words else "/"))
    return found


def _unseparated(report: Report, ranked: dict[str, int]) -> list[Joined]:
    """Return the longest stretches of our order without a separated pair, and their sign.

    An unseparated pair outside these is returned by itself; a distant, noisy row can cause one.
    """
    if not report.pairs:
        return []
    ordered = sorted(ranked, key=lambda label: ranked[label])
    joined = {}
    for first, second in itertools.combinations(ordered, 2):
        pair = report.pairs.get((first, second)) or report.pairs.get((second, first))
        # A pair with fewer than two shared seeds is untested, and so not separated.
        verdict = "open" if pair is None else pair.verdict
        if verdict in ("equivalent", "open"):
            joined[first, second] = _EQUAL if verdict == "equivalent" else _OPEN

    found: list[Joined] = []
    covered: set[tuple[str, str]] = set()
    # Longest first.
    spans = sorted(itertools.combinations(range(len(ordered)), 2), key=lambda s: s[0] - s[1])
    for begin, end in spans:
        members = ordered[begin : end + 1]
        pairs = set(itertools.combinations(members, 2))
        if pairs <= joined.keys() and not pairs <= covered:
            signs = {joined[pair] for pair in pairs}
            found.append((members, _EQUAL if signs == {_EQUAL} else _OPEN))
            covered |= pairs
    found += [([*pair], sign) for pair, sign in joined.items() if pair not in covered]
    return found


def _join(
    axes: Axes, joined: Sequence[Joined], ranked: Mapping[str, int], edge: float, side: int
) -> None:
    """Draw a bar beside each stretch of neighbours, and outside these an arc for each other pair.

    Args:
        edge: the end of the names.
        side: 1 for the right, -1 for the left.
    """
    lanes: list[int] = []
    arcs = []
    for members, sign in sorted(joined, key=lambda one: ranked[one[0][0]]):
        top = ranked[members[0]]
        bottom = ranked[members[-1]]
        if len(members) == 2 and bottom - top > 1:
            arcs.append((members, sign))
            continue

        # Use the first lane whose last bar ends above this one.
        lane = next((i for i, last in enumerate(lanes) if last < top), len(lanes))
        lanes[lane : lane + 1] = [bottom]
        x = edge + side * (0.04 + _LANE * lane)
        _draw(axes, [x, x], [top - 0.25, bottom + 0.25], members, sign, 2.0)
        align = "left" if side > 0 else "right"
        axes.text(x + side * 0.02, (top + bottom) / 2, sign, ha=align, va="center", color=INK)

    begin = edge + side * (0.04 + _LANE * len(lanes))
    arc = np.linspace(0, np.pi, 40)
    for members, sign in arcs:
        first, last = (ranked[label] for label in members)
        out = side * 0.035 * (last - first) * np.sin(arc)
        heights = (first + last) / 2 - (last - first) / 2 * np.cos(arc)
        _draw(axes, begin + out, heights, members, sign, 0.8)


def _draw(
    axes: Axes, x: ArrayLike, y: ArrayLike, members: Sequence[str], sign: str, width: float
) -> None:
    style = "-" if sign == _EQUAL else "--"
    gid = f"joined {' '.join(members)}"
    axes.plot(x, y, color=INK, linewidth=width, linestyle=style, gid=gid, clip_on=False)
