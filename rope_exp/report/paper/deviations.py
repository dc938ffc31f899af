"""Figure 8: how far differences deviate at the same seed and at different ones, from the pilot."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence.noise import Spread
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


@styled
def deviations(spreads: Sequence[Spread], names: Mapping[str, str] | None = None) -> Figure | None:
    """Draw for each pair of rows the paired deviation beside the unpaired, by what varies.

    Args:
        spreads: of the pilot.
        names: of rows, by their labels; None: the labels.
    Returns:
        None where no two rows share two values of anything.
    """
    # A pilot that is not done may have one row alone under what varies.
    shown = [spread for spread in spreads if spread.paired]
    if not shown:
        return None

    heights = [len(spread.paired) for spread in shown]
    figure = Figure(figsize=(WIDTH, 1.3 + 0.21 * sum(heights) + 0.25 * len(shown)))
    panels = figure.subplots(
        len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    widest = max(max(*each.paired.values(), *each.unpaired.values()) for each in shown)
    for axes, spread in zip(panels[:, 0], shown, strict=True):
        axes.axvspan(0, MARGIN, color=BAND, linewidth=0, zorder=0)
        axes.set_xlim(0, 1.12 * max(widest, MARGIN))
        _draw(axes, spread, names or {})
    panels[-1, 0].set_xlabel(f"standard deviation of a difference ({UNIT})")
    small_print(
        figure,
        "Full dot: two rows at the same value of what varies (paired); hollow: at different values "
        "(unpaired); beside: paired over unpaired. Grey band: up to the margin of "
        f"{MARGIN:g} nats. One pair of runs; a mean over n seeds deviates by 1/√n of this.",
    )
    return figure


def _draw(axes: Axes, spread: Spread, names: Mapping[str, str]) -> None:
    ratio = ""
    if min(spread.unpaired.values()) > 0 and spread.ratio is not None:
        ratio = f"all pairs {spread.ratio:.2f}"
    axes.set_title(f"what varies: {spread.what} ({spread.count} values)", fontsize=8)
    axes.set_title(ratio, loc="right", fontsize=SMALL, color=GREY)
    pairs = list(spread.paired)
    for place, pair in enumerate(pairs):
        _draw_pair(axes, " ".join(pair), spread.paired[pair], spread.unpaired[pair], place)

    spelled = [f"{names.get(b, b)} − {names.get(a, a)}" for a, b in pairs]
    axes.set_yticks(range(len(pairs)), spelled)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _draw_pair(axes: Axes, gid: str, paired: float, unpaired: float, place: int) -> None:
    axes.plot([paired, unpaired], [place, place], color=GREY, linewidth=0.9, zorder=2)
    axes.plot(paired, place, "o", color=INK, zorder=4, gid=f"{gid} paired")
    hollow: Style = {"color": INK, "markerfacecolor": "white"}
    axes.plot(unpaired, place, "o", zorder=3, gid=f"{gid} unpaired", **hollow)

    if unpaired:
        offset: Style = {"xytext": (7, 0), "textcoords": "offset points", "va": "center_baseline"}
        at = (max(paired, unpaired), place)
        axes.annotate(f"{paired / unpaired:.2f}", at, fontsize=SMALL, color=GREY, **offset)
