"""Figure 8: standard deviations of differences at equal and different seeds, from the pilot."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rope_exp.evidence.significance import MARGIN
from rope_exp.report.paper.style import (
    BAND,
    GREY,
    INK,
    SMALL,
    UNIT,
    WIDTH,
    Style,
    small_print,
    styled,
)
from rope_exp.studies.noise.measures import Spread

_TICKS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)


@styled
def deviations(spreads: Sequence[Spread], names: Mapping[str, str] | None = None) -> Figure | None:
    """Draw the paired above the unpaired deviation of each pair of rows, by source of noise.

    Args:
        spreads: the spreads of the pilot.
        names: the names of rows, by label; None: the labels.
    Returns:
        None if no spread has a pair of rows.
    """
    # An unfinished pilot may have only one row in a spread.
    shown = [spread for spread in spreads if spread.paired]
    if not shown:
        return None

    heights = [len(spread.paired) for spread in shown]
    figure = Figure(figsize=(WIDTH, 1.4 + 0.26 * sum(heights) + 0.25 * len(shown)))
    panels = figure.subplots(
        len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    low, high = _limits(shown)
    for axes, spread in zip(panels[:, 0], shown, strict=True):
        axes.set_xscale("log")
        ticks = [tick for tick in _TICKS if low < tick < high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(low, high)
        axes.axvspan(low, MARGIN, color=BAND, linewidth=0, zorder=0)
        _draw(axes, spread, names or {})
    panels[-1, 0].set_xlabel(f"standard deviation of a difference ({UNIT})")
    small_print(
        figure,
        "Full dot: two rows at the same value of the source that varies (paired); hollow: at "
        "different values (unpaired). Bars: 95 % intervals of a normal sample's SD (no wider for "
        "hollow dots). Right: paired over unpaired, root mean square over the pairs. Grey band: up "
        f"to the margin of {MARGIN:g} nats. The SDs are for one pair of runs; the SD of a mean "
        "over n seeds is 1/√n of this.",
    )
    return figure


def _limits(shown: Sequence[Spread]) -> tuple[float, float]:
    """Return limits that contain every deviation and bar, except 0, as the axis is logarithmic."""
    ends = [MARGIN / 2, 2 * MARGIN]
    for spread in shown:
        for value in (*spread.paired.values(), *spread.unpaired.values()):
            ends += [value * times for times in (*spread.known_within, 1.0)]
    positive = [end for end in ends if 0 < end < math.inf]
    return min(positive) / 1.2, max(positive) * 1.2


def _draw(axes: Axes, spread: Spread, names: Mapping[str, str]) -> None:
    ratio = ""
    if min(spread.unpaired.values()) > 0 and spread.ratio is not None:
        ratio = f"paired / unpaired {spread.ratio:.2f}"
    axes.set_title(f"what varies: {spread.what} ({spread.count} values)", fontsize=8)
    axes.set_title(ratio, loc="right", fontsize=SMALL, color=GREY)

    pairs = list(spread.paired)
    hollow: Style = {"markerfacecolor": "white"}
    for place, pair in enumerate(pairs):
        for kind, values, at, style in (
            ("paired", spread.paired, place - 0.16, {}),
            ("unpaired", spread.unpaired, place + 0.16, hollow),
        ):
            value = values[pair]
            low, high = (value * times for times in spread.known_within)
            axes.plot([low, high], [at, at], color=GREY, linewidth=0.9, zorder=2)
            gid = f"{' '.join(pair)} {kind}"
            axes.plot(value, at, "o", color=INK, zorder=3, gid=gid, **style)

    spelled = [f"{names.get(b, b)} − {names.get(a, a)}" for a, b in pairs]
    axes.set_yticks(range(len(pairs)), spelled)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
