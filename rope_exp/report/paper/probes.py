"""Figure 7: losses of finished models by position and length, and under shift and ablation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from rope_exp.config.variants import SITES
from rope_exp.evidence.comparable import Row
from rope_exp.report.content import Report
from rope_exp.report.looks import look
from rope_exp.report.paper.style import (
    GREY,
    WIDTH,
    Style,
    engineer,
    log_axis,
    seeds,
    small_print,
    styled,
    zero_line,
)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Answer:
    """A row's answers to one probe: places (edges, lengths, starts or sites) and losses by seed."""

    of: Sequence[str | int]
    losses: Mapping[int, Array]

    @property
    def loss(self) -> Array:
        """The mean over seeds."""
        return _mean(self.losses.values())

    def minus(self, other: "_Answer") -> Array | None:
        """Return the mean difference over shared seeds; None without any, or if places differ."""
        shared = self.losses.keys() & other.losses.keys()
        if self.of != other.of or not shared:
            return None
        return _mean(self.losses[seed] - other.losses[seed] for seed in sorted(shared))


@styled
def probes(report: Report) -> Figure | None:
    """Draw a panel for each probe, with a line or dots for each row; None without answers."""
    rows = [row for row in report.rows.values() if any(run.probes for run in row.runs)]
    drawn = {
        key: {row.label: answer for row in rows if (answer := _answer(row, probe, of, loss))}
        for key, probe, of, loss in (
            ("position", "positions", "edges", "loss"),
            ("length", "positions", "lengths", "loss_at_length"),
            ("shift", "shift", "start", "loss"),
            ("ablation", "ablation", "without", "loss"),
        )
    }
    if not any(drawn.values()):
        return None

    draw = {
        "position": _draw_positions,
        "length": _draw_lengths,
        "shift": _draw_shift,
        "ablation": _draw_ablation,
    }
    asked = [key for key, answers in drawn.items() if answers]
    # Two panels side by side; a last single one takes the full width.
    lines: list[Any] = [asked[start : start + 2] for start in range(0, len(asked), 2)]
    figure = Figure(figsize=(WIDTH, 2.7 * len(lines)))
    for key, axes in figure.subplot_mosaic([line * (2 // len(line)) for line in lines]).items():
        draw[key](axes, report, drawn[key])

    handles = [
        Line2D([], [], label=row.name, **look(row.label, row.number))
        for row in rows
        if any(row.label in answers for answers in drawn.values())
    ]
    columns = math.ceil(len(handles) / math.ceil(len(handles) / 6))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)
    small_print(figure, _print(report, rows, asked))
    return figure


def _answer(row: Row, probe: str, of: str, loss: str) -> _Answer | None:
    """Return the answers of runs probed like the row's first; None if no run was probed."""
    found = {run.config.seed: run.probes[probe] for run in row.runs if probe in run.probes}
    if not found:
        return None

    first = next(iter(found.values()))[of]
    same = {seed: answer for seed, answer in found.items() if answer[of] == first}
    return _Answer(first, {seed: np.array(answer[loss]) for seed, answer in same.items()})


def _mean(values: Iterable[Array]) -> Array:
    return np.asarray(np.mean(list(values), axis=0))


# -- the panels ------------------------------------------------------------------------------------


def _draw_positions(axes: Axes, report: Report, answers: dict[str, _Answer]) -> None:
    """Draw losses by position minus the reference's, or plain losses without a reference.

    Differences are within a seed: a row that shares no seed with the reference is left out.
    """
    reference = answers.get(report.reference.label)
    for label, answer in answers.items():
        edges = np.array(answer.of, dtype=float)
        # The middle of a bin on the log axis, with positions counted from 1.
        middles = np.sqrt((edges[:-1] + 1) * edges[1:])
        heights = answer.loss if reference is None else answer.minus(reference)
        if heights is not None:
            axes.plot(middles, heights, gid=f"{label} position", **_line(report, label))

    axes.set_xscale("log")
    trained = report.runs[0].config.train.seq_len
    axes.axvline(trained, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: engineer(value)))
    title = "by position"
    if reference is not None:
        title += f", minus {report.reference.name}'s"
        zero_line(axes)
    axes.set(title=title, xlabel="position (tokens)", ylabel=f"loss ({report.unit})")


def _draw_lengths(axes: Axes, report: Report, answers: dict[str, _Answer]) -> None:
    trained = report.runs[0].config.train.seq_len
    ticks: set[float] = set()
    for label, answer in answers.items():
        multiples = np.array(answer.of, dtype=float) / trained
        ticks |= set(multiples.tolist())
        axes.plot(multiples, answer.loss, gid=f"{label} length", **_line(report, label))
    log_axis(axes, ticks, lambda multiple: f"{multiple:g}×")
    xlabel = f"window (training lengths of {trained} tokens)"
    axes.set(title="over whole windows", xlabel=xlabel, ylabel=f"loss ({report.unit})")


def _draw_shift(axes: Axes, report: Report, answers: dict[str, _Answer]) -> None:
    """Draw the added loss when positions begin elsewhere; starts are equally spaced."""
    starts: Sequence[str | int] = []
    for label, answer in answers.items():
        starts = max(starts, answer.of, key=len)
        cost = answer.loss - answer.loss[0]
        axes.plot(range(len(cost)), cost, gid=f"{label} shift", **_line(report, label))
    axes.set_xticks(range(len(starts)), [f"{start:,}" for start in starts])
    _room_for_zero(axes)
    axes.set(title="positions that begin elsewhere, minus at 0", xlabel="first position (tokens)")
    axes.set_ylabel(f"added loss ({report.unit})")


def _draw_ablation(axes: Axes, report: Report, answers: dict[str, _Answer]) -> None:
    """Draw the added loss without one site's rotation: a column a site, a dot a row."""
    for place, site in enumerate(SITES):
        rows_with_site = [label for label in answers if site in answers[label].of]
        # Dots are side by side, so that equal ones stay visible.
        count = len(rows_with_site)
        offsets = np.linspace(-0.3, 0.3, count) if count > 1 else np.zeros(count)
        for label, offset in zip(rows_with_site, offsets, strict=True):
            answer = answers[label]
            losses = dict(zip(answer.of, answer.loss, strict=True))
            cost = losses[site] - losses[""]
            style = _line(report, label) | {"linestyle": "none", "markersize": 5}
            axes.vlines(place + offset, 0, cost, color=style["color"], linewidth=0.7)
            axes.plot(place + offset, cost, gid=f"{label} without {site}", **style)
    axes.set_xticks(range(len(SITES)), [site.upper() for site in SITES])
    axes.set_xlim(-0.5, len(SITES) - 0.5)
    axes.grid(axis="x", visible=False)
    _room_for_zero(axes)
    axes.set(title="one site's rotation switched off, minus as trained", xlabel="site")
    axes.set_ylabel(f"added loss ({report.unit})")


# -- helpers ---------------------------------------------------------------------------------------


def _line(report: Report, label: str) -> Style:
    row = report.rows[label]
    return look(label, row.number) | {"linewidth": 0.9, "markersize": 3.5}


def _room_for_zero(axes: Axes) -> None:
    """Show at least a hundredth of a nat, as smaller values are rounding noise."""
    zero_line(axes)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.01), max(high, 0.01))


def _print(report: Report, rows: Sequence[Row], asked: Sequence[str]) -> str:
    counts = [sum(bool(run.probes) for run in row.runs) for row in rows]
    said = [f"Group {report.groups}; {seeds(counts)} a row."]
    if "position" in asked:
        said.append(
            "By position: bins of half an octave, dots at their middles, differences over the "
            "seeds that both have; dashed: the training length."
        )
    if "shift" in asked:
        said.append("A relative variant cannot tell where positions begin.")
    return " ".join(said)
