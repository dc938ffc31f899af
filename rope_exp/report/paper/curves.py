"""Figure 4: losses during training, and their differences to the reference."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence.comparable import Row
from rope_exp.report.by_tokens import SHOWN_FROM, by_tokens, finished_or_all
from rope_exp.report.content import Report
from rope_exp.report.looks import look
from rope_exp.report.paper.labels import End, label_ends
from rope_exp.report.paper.style import (
    WIDTH,
    Style,
    close_up,
    freeze,
    limits,
    small_print,
    styled,
    token_axis,
    zero_line,
)

_LOSSES = {"val/loss": "validation loss", "train/loss": "training loss"}


@styled
def curves(report: Report) -> Figure | None:
    """Draw differences to the reference, validation and training losses against tokens.

    None if no run has an evaluation.
    """
    if not any("val/loss" in row for run in report.runs for row in run.metrics):
        return None

    # The running median of training losses covers a tenth of the longest run's rows.
    window = max(1, max(len(run.metrics) for run in report.runs) // 10)
    figure = Figure(figsize=(WIDTH, 4.0))
    close_up(figure)
    axes = figure.subplot_mosaic(
        [["delta", "names", "val/loss"], ["delta", "names", "train/loss"]],
        width_ratios=(10, 2.8, 6.4),
    )
    for key, title in _LOSSES.items():
        _draw_losses(axes[key], report, key, title, window if key == "train/loss" else 1)
    axes["val/loss"].tick_params(labelbottom=False)
    token_axis(axes["train/loss"])
    ends = _draw_differences(axes["delta"], report)

    _fit_tokens(report, axes["delta"], axes["val/loss"], axes["train/loss"])
    small_print(figure, *_print(report, window))
    freeze(figure)
    label_ends(axes["names"], axes["delta"], ends)
    return figure


# -- differences -----------------------------------------------------------------------------------


def _draw_differences(axes: Axes, report: Report) -> list[End]:
    """Draw each row's mean difference and the band of its seeds; return the ends of the lines."""
    ends = []
    means: list[float] = []
    edges: list[float] = []
    for row, differences in _differences(report):
        style = look(row.label, row.number)
        mean = differences.mean(axis="columns")
        apart: Style = {"markevery": max(1, len(mean) // 16)}
        axes.plot(mean, zorder=4, gid=f"{row.label} delta", **style | apart)
        ends.append(End(row.label, float(mean.iloc[-1]), _end_text(row)))

        # The band is one standard deviation over seeds on either side; one seed has none.
        deviation = differences.std(axis="columns")
        places = mean.index.to_numpy(dtype=float)
        band: Style = {"color": style["color"], "alpha": 0.18, "linewidth": 0, "zorder": 2}
        axes.fill_between(places, (mean - deviation).to_numpy(), mean + deviation, **band)

        if row.verdict != "diverged":
            means += _late(mean)
            edges += [*_late((mean - deviation).dropna()), *_late((mean + deviation).dropna())]

    axes.set_ylim(limits(means, edges))
    axes.set_ylabel(f"validation loss minus {report.reference.name}'s ({report.unit})")
    token_axis(axes)
    zero_line(axes)
    return ends


def _differences(report: Report) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Yield each row with its differences to the reference by tokens, a column for each seed."""
    reference = by_tokens(finished_or_all(report.reference), "val/loss")
    for row in report.rows.values():
        losses = by_tokens(finished_or_all(row), "val/loss")
        differences = losses.sub(reference).dropna(axis="columns", how="all").dropna()
        if not differences.empty:
            yield row, differences


def _late(values: "pd.Series[float]") -> list[float]:
    """Return the values after the steep beginning."""
    return [*values[values.index >= SHOWN_FROM * values.index.max()]]


def _end_text(row: Row) -> str:
    """Return a row's name, with its verdict if it has no loss."""
    return f"{row.name} ({row.verdict})" if row.verdict else row.name


# -- losses ----------------------------------------------------------------------------------------


def _draw_losses(axes: Axes, report: Report, key: str, title: str, window: int) -> None:
    """Draw the mean over finished seeds; a cross marks the end of a diverged run."""
    heights: list[float] = []
    for row in report.rows.values():
        style = look(row.label, row.number)
        shown = finished_or_all(row)
        values = by_tokens(shown, key, window).dropna()
        if not values.empty:
            mean = values.mean(axis="columns")
            # A mark at every logged step would hide the line.
            every = max(1, len(mean) // 8)
            small: Style = {"linewidth": 0.9, "markersize": 3, "markevery": every}
            axes.plot(mean, gid=f"{row.label} {key}", **style | small)
            if shown[0].status != "diverged":
                heights += _late(mean)

    if heights:
        pad = 0.06 * (max(heights) - min(heights)) or 0.1
        axes.set_ylim(min(heights) - pad, max(heights) + pad)
    for row in report.rows.values():
        _cross_out(axes, row, key, window)
    axes.set_ylabel(f"{title}\n({report.unit})")


def _cross_out(axes: Axes, row: Row, key: str, window: int) -> None:
    """Mark the ends of diverged runs, moved to the edge if they lie outside."""
    low, high = axes.get_ylim()
    for run in row.runs:
        values = by_tokens([run], key, window)
        if run.status == "diverged" and len(values):
            place = values.index.to_numpy(dtype=float)[-1]
            height = float(values.to_numpy()[-1, 0].clip(low, high))
            style: Style = {"color": look(row.label, row.number)["color"], "zorder": 6}
            axes.plot(place, height, "x", markersize=7, markeredgewidth=2, clip_on=False, **style)


# -- helpers ---------------------------------------------------------------------------------------


def _fit_tokens(report: Report, *several: Axes) -> None:
    longest = max(run.config.train.num_tokens for run in report.runs)
    for axes in several:
        axes.set_xlim(0, 1.02 * longest)


def _print(report: Report, window: int) -> list[str]:
    num_seeds = len({run.config.seed for run in report.runs})
    seeds = "one seed"
    if num_seeds > 1:
        seeds = (
            f"means over up to {num_seeds} finished seeds; band: one SD of a difference over "
            "seeds, not a 95 % interval"
        )
    said = [
        f"Group {report.groups}; {seeds}.",
        f"Training loss: running median over {window} logged steps. Steep beginnings are cut off.",
    ]
    if report.of_variants:
        said.insert(
            1,
            "Colour and fill of the marker: which of Q and K rotate; dash and shape: which of V "
            "and O.",
        )
    if any(run.status == "diverged" for run in report.runs):
        said.append("×: diverged.")
    if not report.reference.runs:
        said.append(f"Without {report.reference.name} there are no differences.")
    return said
