"""Shared style of all figures: size, fonts, small print, axes, and reproducible files.

A function marked `styled` draws a figure, and `files_of` converts it to SVG.
"""

import functools
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from rope_exp.report.spelling import span

WIDTH = 6.75
INK = "#222222"
GREY = "#666666"
SMALL = 7.0
MOST_PANELS = 3  # beside each other

_STYLE: dict[str, Any] = {
    "font.size": 8.0,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#EBEBEB",
    "grid.linewidth": 0.5,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "legend.handlelength": 3.2,
    "figure.constrained_layout.use": True,
    # Text is drawn as paths, so that it looks the same without the font; ids do not change.
    "svg.fonttype": "path",
    "svg.hashsalt": "rope_exp",
}

# Keywords of an artist.
Style = dict[str, Any]

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the common style, regardless of the user's matplotlib style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.style.context(["default", _STYLE]):
            return draw(*args, **kwargs)

    return drawn


@styled
def files_of(name: str, figure: Figure | None) -> dict[str, bytes]:
    """Return figures/NAME.svg, without date or version; empty without a figure."""
    if figure is None:
        return {}
    svg = io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return {f"figures/{name}.svg": svg.getvalue()}


def panels_of(
    titles: Sequence[str], ylabel: str, *, margin: float, height: float
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title, at most `MOST_PANELS` a line, on one scale.

    Args:
        ylabel: label of the leftmost panels.
        margin, height: height of the figure's margin and of a line of panels, in inches.
    """
    columns = min(len(titles), MOST_PANELS)
    lines = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(WIDTH, margin + height * lines))
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten()
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title)
    for axes in panels[len(titles) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(ylabel)
    return figure, list(panels[: len(titles)])


def small_print(figure: Figure, *sentences: str) -> None:
    """Write explanations below a figure."""
    text = " ".join(sentence for sentence in sentences if sentence)
    lines = textwrap.fill(text, width=126)
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=SMALL, color=GREY)


def seeds(counts: Iterable[int]) -> str:
    """Return the number of seeds as text, or its range if rows differ."""
    spelled = span(counts)
    return "one seed" if spelled == "1" else f"{spelled} seeds"


def shades(count: int) -> list[tuple[float, ...]]:
    """Return colours for ordered lines, from pale to dark, in grey too."""
    # The palest end of the scheme is invisible on white.
    places = np.linspace(0.85, 0.0, count) if count > 1 else [0.0]
    return [matplotlib.colormaps["viridis"](place) for place in places]


def zero_line(axes: Axes) -> None:
    """Draw a line at 0, the reference."""
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)


def log_axis(axes: Axes, ticks: Iterable[float], form: Callable[[float], str]) -> None:
    """Make the horizontal axis logarithmic, with these ticks and a little space at the ends."""
    places = sorted(ticks)
    axes.set_xscale("log")
    axes.set_xticks(places, [form(place) for place in places])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    room = (places[-1] / places[0]) ** 0.05 if len(places) > 1 else 2.0
    axes.set_xlim(places[0] / room, places[-1] * room)
