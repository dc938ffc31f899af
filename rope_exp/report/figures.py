"""The figures: loss curves, and our differences beside the published ones.

PNG bytes that depend on the runs alone.
"""

import io
import math
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from rope_exp.evidence import published
from rope_exp.evidence.comparable import Row
from rope_exp.report.by_tokens import SHOWN_FROM, by_tokens, finished_or_all
from rope_exp.report.content import Line, Report
from rope_exp.report.looks import look

_STYLE: dict[str, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 150.0,
    "figure.constrained_layout.use": True,
}
_GREY = "#555555"


# -- loss curves -----------------------------------------------------------------------------------


def loss_curves(report: Report) -> bytes:
    """Draw losses against tokens, and validation loss minus the reference's at the same tokens."""
    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(11.5, 5.2))
        losses, deltas = figure.subplots(1, 2)

        # The running median of training losses: over a tenth of the longest run's rows.
        window = max(1, max(len(run.metrics) for run in report.runs) // 10)
        # Runs of the reference that ended early would cut the others' curves.
        reference = by_tokens(finished_or_all(report.reference), "val/loss")
        lines = []
        for row in report.rows.values():
            validation = by_tokens(row.runs, "val/loss")
            difference = validation.sub(reference).dropna(axis="columns", how="all")
            _draw(losses, by_tokens(row.runs, "train/loss", window), row, pale=True)
            _draw(losses, validation, row)
            _draw(deltas, difference, row)

            ended = row.verdict or f"{row.ours.loss_mean:.4f}"
            label = f"{row.name}  {ended}"
            style = look(row.label, row.number)
            lines.append(Line2D([], [], markersize=4, label=label, **style))

        _fit(losses)
        _fit(deltas)
        _label(report, losses, deltas)
        for row in report.rows.values():
            _cross_out(losses, row, window)

        figure.legend(handles=lines, loc="outside right upper", fontsize=8, handlelength=3)
        return _png(figure, _small_print(report, window))


def _draw(axes: Axes, curves: pd.DataFrame, row: Row, *, pale: bool = False) -> None:
    """Draw the mean over finished seeds, where all of them have a value, and thin each seed.

    A row without a finished seed has no mean: each of its seeds stands for itself.
    """
    status: dict[Any, str] = {run.config.seed: run.status for run in row.runs}
    shown = {seed: curves[seed].dropna() for seed in curves}
    finished = [seed for seed in shown if status[seed] == "finished"]

    style = look(row.label, row.number) | {"linewidth": 1.3, "markersize": 4}
    thin = style | {"linewidth": 0.6, "alpha": 0.45, "marker": ""}
    if finished:
        if len(shown) > 1 and not pale:
            for seed, curve in shown.items():
                axes.plot(curve, gid=status[seed], **thin)
        shown = {finished[0]: curves[finished].dropna().mean(axis="columns")}

    if pale:
        style |= {"linewidth": 0.9, "alpha": 0.35, "marker": ""}
    for seed, curve in shown.items():
        axes.plot(curve, gid=status[seed], **style)


def _fit(axes: Axes) -> None:
    """Limit the axes to what curves do after their steep beginning and before they diverge."""
    lines = [line for line in axes.lines if line.get_gid() != "diverged"] or axes.lines
    tokens, heights = np.vstack([np.empty((0, 2)), *map(Line2D.get_xydata, lines)]).T
    # Of runs that have hardly begun there is nothing to show.
    if not len(tokens):
        return

    heights = heights[tokens >= SHOWN_FROM * tokens.max()]
    margin = 0.06 * float(np.ptp(heights)) or 0.1
    axes.set_ylim(heights.min() - margin, heights.max() + margin)


def _label(report: Report, losses: Axes, deltas: Axes) -> None:
    title = "Validation loss (marked), training loss (pale)"
    losses.set(title=title, ylabel="loss (nats per token)")
    # The label of another factor is long.
    within = ", same tokens and seed" if report.of_variants else ""
    title = f"Validation loss minus {report.reference.name}'s{within}"
    deltas.set(title=title, ylabel="difference (nats per token)")
    deltas.axhline(0, color="black", linewidth=0.8)
    for axes in (losses, deltas):
        longest = max(run.config.train.num_tokens for run in report.runs)
        axes.set(xlabel="training tokens", xlim=(0, 1.02 * longest))
        tokens = EngFormatter(sep="")
        tokens.ENG_PREFIXES = {0: "", 3: "k", 6: "M", 9: "B"}
        axes.xaxis.set_major_formatter(tokens)


def _cross_out(axes: Axes, row: Row, window: int) -> None:
    """Mark where diverged runs ended, moved to the edge if that lies outside."""
    for run in row.runs:
        if run.status == "diverged" and run.metrics:
            end = by_tokens([run], "train/loss", window)[-1:].clip(*axes.get_ylim())
            color = look(row.label, row.number)["color"]
            axes.plot(end, "x", color=color, markersize=9, markeredgewidth=2.2, clip_on=False)


def _small_print(report: Report, window: int) -> str:
    num_seeds = len({run.config.seed for run in report.runs})
    seeds = "one seed"
    if num_seeds > 1:
        seeds = f"{num_seeds} seeds (mean of the finished; thin: single seeds)"

    crosses = "; ×: diverged" if any(run.status == "diverged" for run in report.runs) else ""
    return (
        f"Group {report.groups}; {seeds}; listed by final validation loss; training loss: running "
        f"median over {window} logged steps{crosses}; steep beginnings are cut off."
    )


# -- against the published table -------------------------------------------------------------------


def against_published(report: Report) -> bytes:
    """Draw differences to the reference, ours and the published, one line a variant."""
    # The published order, then what nobody has published, by our loss as the rows are.
    rows = sorted(report.rows.values(), key=lambda row: row.theirs.loss_mean or math.inf)
    num_known = sum(row.theirs.num_seeds for row in rows)
    name = report.reference.name
    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(8.0, 1.9 + 0.3 * len(rows)))
        axes = figure.subplots()
        for height, row in enumerate(rows):
            _draw_difference(axes, row, height)
        axes.axvline(0, color="black", linewidth=0.8)
        if 0 < num_known < len(rows):
            axes.axhline(num_known - 0.5, color="#999999", linewidth=0.8, linestyle=":")
        names = [f"{row.name} ({row.verdict})" if row.verdict else row.name for row in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set(
            ylim=(len(rows) - 0.5, -0.5),
            xlabel=f"loss minus {name}'s (nats per token; right is worse)",
            title=f"Differences to {name}: ours beside the published",
        )

        several = any(row.ours.delta_sd is not None for row in rows)
        bars = "bars: one sd of the differences" if several else "one seed"
        dot: dict[str, Any] = {"color": _GREY, "marker": "o", "linestyle": ""}
        ours = Line2D([], [], markersize=6, label=f"ours ({bars})", **dot)
        hollow = Line2D([], [], markersize=8, label="published", markerfacecolor="white", **dot)
        figure.legend(handles=[ours, hollow], loc="outside upper right", ncols=2, fontsize=8)
        return _png(
            figure,
            f"Ours: group {report.groups}, corpus {report.runs[0].config.data.name}. Published: "
            f"{published.SOURCE_SHORT}, about 1B parameters, corpus and budget not given.\n"
            "Models and corpora differ, and so do the scales: compare order and signs, not sizes.",
        )


def _draw_difference(axes: Axes, row: Line, height: int) -> None:
    """Draw a hollow dot for the published difference, a full one for ours; none for a missing."""
    color = look(row.label)["color"]
    both = np.array([row.ours.delta, row.theirs.delta], dtype=float)

    axes.plot(both, [height, height], color="#bbbbbb", linewidth=2, zorder=1)
    axes.plot(both[1], height, "o", color=color, markerfacecolor="white", markersize=8)
    axes.errorbar(
        both[0], height, xerr=row.ours.delta_sd, fmt="o", color=color, markersize=6, capsize=3
    )


def _png(figure: Figure, small_print: str) -> bytes:
    figure.supxlabel(small_print, fontsize=7, color=_GREY)
    buffer = io.BytesIO()
    # Without matplotlib's version among the metadata: the picture alone decides the bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
