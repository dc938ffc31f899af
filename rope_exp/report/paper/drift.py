"""Figure of learned frequencies: the change of each since the start of training.

The input is the answers to the probe `drift` (evaluation/drift.py).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.config.variants import PAIRS
from rope_exp.evidence.contrasts import Array
from rope_exp.report.content import Report
from rope_exp.report.paper.style import (
    WIDTH,
    Style,
    seeds,
    shades,
    small_print,
    styled,
    zero_line,
)
from rope_exp.report.probed import PAIR_NAMES


@styled
def drift(report: Report) -> Figure | None:
    """Draw ln(theta/theta0) against theta0: a panel for each row and pair of sites, two a line.

    None if no frequency was learned.
    """
    drawn = {
        label: found
        for label, found in report.answers("drift").items()
        if any(answer["sites"] for answer in found)
    }
    if not drawn:
        return None

    panels = [
        (label, pair, sites)
        for label, found in drawn.items()
        for pair in PAIRS
        if (sites := [answer["sites"][pair] for answer in found if pair in answer["sites"]])
    ]
    num_lines = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(WIDTH, 0.5 + 2.3 * num_lines))
    grid = figure.subplots(num_lines, min(len(panels), 2), squeeze=False)
    of_rows: dict[str, list[Axes]] = {}
    for axes, (label, pair, sites) in zip(grid.flat, panels, strict=False):
        title = f"{report.rows[label].name}\n{PAIR_NAMES[pair]}"
        _draw(axes, f"{label} {pair}", title, sites)
        of_rows.setdefault(label, []).append(axes)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for row in of_rows.values():
        # A row's panels share a scale of at least 0.01, so that rounding does not fill them.
        lows, highs = zip(*(axes.get_ylim() for axes in row), strict=True)
        for axes in row:
            axes.set_ylim(min(*lows, -0.01), max(*highs, 0.01))

    counts = seeds(len(found) for found in drawn.values())
    small_print(
        figure,
        "Each line shows the learned frequencies θ of the model, a layer, or a key/value head in a "
        f"layer, the palest first ({counts} per row). θ₀: at the start. Above 0, a pair rotates "
        "faster than at the start. Median: of the absolute values over a run's lines, averaged "
        "over runs.",
    )
    return figure


def drifts(site: Mapping[str, Any]) -> Array:
    """Return ln(|theta|/theta0) of each line of a pair of sites: [lines, F].

    The sign of a directly learned frequency has no effect: the model rotates by its absolute value.
    """
    theta = np.array(site["theta"], dtype=float)
    moved: Array = np.log(np.abs(theta) / np.array(site["theta0"], dtype=float))
    return moved


def _draw(axes: Axes, gid: str, title: str, sites: Sequence[Mapping[str, Any]]) -> None:
    of_runs = [drifts(site) for site in sites]
    for run, (site, rows) in enumerate(zip(sites, of_runs, strict=True)):
        for number, (row, color) in enumerate(zip(rows, shades(len(rows)), strict=True)):
            style: Style = {"color": color, "linewidth": 0.9, "marker": "o", "markersize": 2.5}
            axes.plot(site["theta0"], row, gid=f"{gid} {run} {number}", **style)

    # The mean over runs, as in the notes.
    middle = np.mean([np.median(np.abs(of_run)) for of_run in of_runs])
    axes.set_title(f"{title}: median {middle:.3g}")
    axes.set(xlabel="θ₀ (radians per position)", ylabel="ln(θ / θ₀)")
    axes.set_xscale("log")
    zero_line(axes)
