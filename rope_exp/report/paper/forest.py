"""Figure 1: each row's difference to the reference, its intervals, and the published difference."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence.significance import MARGIN
from rope_exp.report.content import Line, Report
from rope_exp.report.looks import look
from rope_exp.report.paper.style import (
    BAND,
    GREY,
    INK,
    SMALL,
    WIDTH,
    Style,
    limits,
    small_print,
    styled,
)
from rope_exp.report.tables import WORDS

_HEADERS = ("Δ [95 % interval]", "verdict", "seeds", "published")


@dataclass(frozen=True)
class _Columns:
    """Columns of words: their total width relative to the chart, and where each begins in it."""

    width: float
    places: tuple[float, ...]


_NARROW = _Columns(1.1, (0.0, 0.53, 0.72, 0.84))
# With space for the number of diverged runs behind a verdict.
_WIDE = _Columns(1.64, (0.0, 0.445, 0.765, 0.865))


@styled
def forest(report: Report) -> Figure | None:
    """Draw the differences to the reference; None if no row shares a seed with it."""
    rows = [row for row in report.rows.values() if row.label != report.reference.label]
    if all(row.ours.delta is None for row in rows):
        return None

    columns = _WIDE if any(row.mark for row in rows) else _NARROW
    figure = Figure(figsize=(WIDTH, 1.35 + 0.19 * len(rows)))
    axes, words = figure.subplots(1, 2, sharey=True, width_ratios=(1, columns.width))
    _set_axes(axes, report, rows)
    _set_words(words, columns, rows)
    for place, row in enumerate(rows):
        _draw(axes, report, row, place)
        _write_words(words, report, row, place, columns)

    small_print(figure, *_small_print(axes, report, rows))
    return figure


def _small_print(axes: Axes, report: Report, rows: list[Line]) -> Iterator[str]:
    yield f"Group {report.groups}."
    if report.against:
        yield (
            "Thick: the 95 % interval by the pair's own SD over seeds (paired t); "
            f"{'ticks: the one by the pooled noise; ' if report.is_pooled else ''}"
            f"thin: the one that holds for all {len(report.against)} differences (Bonferroni)."
        )
    left, right = axes.get_xlim()
    if any(pair.wide_low < left or pair.wide_high > right for pair in report.against.values()):
        yield "An arrow: it goes on."
    yield f"Grey band: the margin of {MARGIN:g} {report.margin_unit}."
    if report.against:
        yield (
            "A row is equivalent where the test shows that its difference lies within. "
            "Verdicts: by Holm over the same family."
        )
    else:
        yield "No row shares two seeds with the reference: nothing here can be tested."
    theirs = report.published
    if theirs and _any_published(rows):
        yield (
            f"Grey circle: published ({theirs.short}; {theirs.setting}); compare order and signs, "
            "not sizes."
        )
    if mark := report.reference.mark:
        yield f"The reference: {report.reference.name} {mark}."


def _set_axes(axes: Axes, report: Report, rows: list[Line]) -> None:
    """Set the scale of differences, the margin's band, and the rows' names."""
    both = [delta for row in rows for delta in (row.ours.delta, row.theirs.delta)]
    means = [delta for delta in both if delta is not None]
    ends = [end for pair in report.against.values() for end in (pair.wide_low, pair.wide_high)]
    axes.set_xlim(limits([*means, -MARGIN, MARGIN], ends))

    set_lines(axes, [row.name for row in rows])
    axes.set_xlabel(f"loss minus {report.reference.name}'s ({report.unit}); right is worse")


def set_lines(axes: Axes, names: Sequence[str]) -> None:
    """Give each name a line, the first on top, and draw the margin's band and 0."""
    axes.axvspan(-MARGIN, MARGIN, color=BAND, linewidth=0, zorder=0, gid="margin")
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _draw(axes: Axes, report: Report, row: Line, place: int) -> None:
    """Draw a row's mean, its intervals if it has two seeds, and the published mean."""
    if row.theirs.delta is not None:
        hollow: Style = {"color": GREY, "marker": "o", "markerfacecolor": "none"}
        gid = f"{row.label} published"
        axes.plot(row.theirs.delta, place, markersize=6.5, zorder=2, gid=gid, **hollow)
    if row.ours.delta is None:
        return
    style = look(row.label, row.number) | {"linestyle": "none"}
    axes.plot(row.ours.delta, place, zorder=4, gid=f"{row.label} delta", **style)

    if row.label in report.against:
        draw_intervals(axes, report, row.label, place, color=style["color"], gid=row.label)


def draw_intervals(
    axes: Axes, report: Report, label: str, place: int, *, color: str, gid: str
) -> None:
    """Draw a difference's paired and family-wise intervals, and ticks at the pooled one's ends.

    An arrow marks a family-wise interval that leaves the axes.
    """
    judged = report.against[label]
    own = report.alone.against[label]
    ends = {
        "family": (judged.wide_low, judged.wide_high, 0.8),
        "interval": (own.low, own.high, 2.6),
    }
    # A projecting cap would lengthen a bar by half its width.
    style: Style = {"color": color, "solid_capstyle": "butt", "zorder": 3}
    for what, (low, high, width) in ends.items():
        axes.plot([low, high], [place, place], linewidth=width, gid=f"{gid} {what}", **style)
    if report.is_pooled:
        ticks: Style = {"color": color, "linestyle": "none", "marker": "|", "markersize": 7}
        axes.plot([judged.low, judged.high], [place, place], zorder=3, gid=f"{gid} pooled", **ticks)

    left, right = axes.get_xlim()
    if judged.wide_low < left:
        axes.plot(left, place, marker=4, color=color, zorder=4, clip_on=False)
    if judged.wide_high > right:
        axes.plot(right, place, marker=5, color=color, zorder=4, clip_on=False)


def _any_published(rows: list[Line]) -> bool:
    return any(row.theirs.delta is not None for row in rows)


def _set_words(axes: Axes, columns: _Columns, rows: list[Line]) -> None:
    axes.set_axis_off()
    across = axes.get_xaxis_transform()
    headers = _HEADERS if _any_published(rows) else _HEADERS[:-1]
    for header, at in zip(headers, columns.places, strict=False):
        axes.text(at, 1.02, header, transform=across, va="bottom", color=GREY, fontsize=SMALL)


def _write_words(axes: Axes, report: Report, row: Line, place: int, columns: _Columns) -> None:
    """Write a row's numbers beside its interval."""
    judged = report.against.get(row.label)
    mark = row.mark
    if judged is not None:
        own = report.alone.against[row.label]
        difference = f"{own.delta:+.4f} [{own.low:+.4f}, {own.high:+.4f}]"
        said = [difference, f"{WORDS[judged.verdict]} {mark}".rstrip(), str(judged.num_seeds)]
    elif row.ours.delta is not None:
        said = [f"{row.ours.delta:+.4f}", f"untested {mark}".rstrip(), "1"]
    else:
        said = ["", row.verdict or mark, str(row.ours.num_seeds)]
    said.append("" if row.theirs.delta is None else f"{row.theirs.delta:+.3f}")

    for at, text in zip(columns.places, said, strict=True):
        gid = f"{row.label} word"
        axes.text(at, place, text, va="center_baseline", fontsize=SMALL, gid=gid)
