"""Figure 6: loss against learning rate, with each variant's best rate and the common rate."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence.comparable import check_blocks
from rope_exp.evidence.rates import common_rate, losses_by_rate, mean_by_rate
from rope_exp.evidence.runs import Run
from rope_exp.report.looks import look
from rope_exp.report.paper.labels import End, label_ends
from rope_exp.report.paper.style import (
    GREY,
    INK,
    SMALL,
    WIDTH,
    Style,
    close_up,
    freeze,
    groups,
    log_axis,
    seeds,
    small_print,
    styled,
)


@styled
def rates(runs: Sequence[Run], common: float | None = None) -> Figure | None:
    """Draw mean losses against optim.lr.

    Args:
        runs: equal except for variant, seed and learning rate.
        common: the rate at which variants are compared; None: the rate with the most runs, and
            among several the one with the lowest mean.
    Returns:
        None if no variant has losses at two rates and one seed.
    Raises:
        ReportError: the runs may not share a figure or a block.
    """
    # Rates, too, are compared within a seed.
    check_blocks(runs)
    finished = [run for run in runs if run.loss is not None]
    tables = losses_by_rate(finished)
    if not tables:
        return None
    if common is None:
        common = common_rate(finished, tables)

    names = {run.config.pe.label: run.variant_name for run in finished}
    figure = Figure(figsize=(WIDTH, 3.6))
    close_up(figure)
    axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(10, 2.6))
    ends = []
    for label, table in tables.items():
        mean = mean_by_rate(table)
        _draw(axes, label, table, mean)
        ends.append(End(label, float(mean.iloc[-1]), names[label]))
    tried = {float(rate) for table in tables.values() for rate in table.columns}
    log_axis(axes, tried, lambda rate: f"{rate:g}")
    axes.set(
        xlabel="learning rate (peak)", ylabel=f"mean validation loss ({runs[0].config.data.unit})"
    )
    _mark_common(axes, common)
    small_print(figure, *_print(runs, tables))

    freeze(figure)
    label_ends(beside, axes, ends)
    return figure


def _draw(axes: Axes, label: str, table: pd.DataFrame, mean: "pd.Series[float]") -> None:
    style = look(label)
    axes.plot(mean, zorder=4, gid=f"{label} mean", **style)

    # Draw single runs as pale dots if a mean covers several.
    dots: Style = {"color": style["color"], "markersize": 2.5, "alpha": 0.5, "marker": "o"}
    if len(table) > 1:
        axes.plot(table.columns, table.T.to_numpy(), linestyle="", zorder=2, **dots)

    ring: Style = {"marker": "o", "markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1}
    best = mean[mean == mean.min()]
    axes.plot(best, color=INK, zorder=5, linestyle="", gid=f"{label} best", **ring)


def _mark_common(axes: Axes, common: float) -> None:
    style: Style = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 3))}
    axes.axvline(common, zorder=1, gid="common", **style)
    words: Style = {"ha": "center", "va": "bottom", "color": GREY, "fontsize": SMALL}
    above = axes.get_xaxis_transform()
    axes.text(common, 1.01, f"common rate {common:g}", transform=above, **words)


def _print(runs: Sequence[Run], tables: Mapping[str, pd.DataFrame]) -> list[str]:
    counts = [count for table in tables.values() for count in table.count()]
    said = [
        f"{groups(runs)}. Lines: means ({seeds(counts)}; where a rate lacks some, by differences "
        "within the others); pale dots: single runs; ring: a variant's best rate of these."
    ]
    lost = sum(run.status == "diverged" for run in runs)
    if lost:
        said.append(f"{lost} diverged and {'is' if lost == 1 else 'are'} not shown.")
    return said
