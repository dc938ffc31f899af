"""Figures of distance: attention by distance with the bound of scores, and kappa of heads.

The input is the answers to the probe `distance` (evaluation/distance.py). A(m) is the mean weight
on the key m tokens before a query, f(m) the long-range decay of Su 2021, and kappa(m) the score of
a head's mean query and mean key at distance m. Only layers that rotate both q and k have kappa.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from rope_exp.evidence.contrasts import Array
from rope_exp.report.content import Report
from rope_exp.report.looks import look
from rope_exp.report.paper.style import (
    GREY,
    INK,
    WIDTH,
    Style,
    panels_of,
    seeds,
    shades,
    small_print,
    styled,
    zero_line,
)
from rope_exp.report.probed import Answer


@styled
def distance(report: Report) -> Figure | None:
    """Draw the mean attention by distance of each row, over its layers and runs; None without."""
    answers = report.answers("distance")
    if not answers:
        return None

    figure = Figure(figsize=(WIDTH, 4.2))
    axes = figure.subplots()
    for label, found in answers.items():
        m = _distances(found[0])
        layers = [answer["attention"][layer] for answer in found for layer in answer["attention"]]
        mean = np.mean(np.array(layers, dtype=float), axis=0)
        row = report.rows[label]
        style = look(label, row.number) | {"linewidth": 0.9, "markersize": 3.5}
        # Beyond an attention window weights are 0, and linear attention may have negative ones.
        heights = np.where(mean > 0, mean, np.nan)
        style |= {"label": row.name, "gid": f"{label} attention", "markevery": _octaves(m)}
        axes.plot(m + 1, heights, **style)
    dashed: Style = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (4, 3))}
    _draw_level(axes, report, "uniform", "uniform", dashed)
    dotted: Style = {"color": INK, "linewidth": 1.2, "linestyle": (0, (1, 1.5))}
    _draw_level(axes, report, "bound", "f(m)", dotted)

    _distance_axis(axes)
    axes.set_yscale("log")
    axes.set_ylabel("mean weight on the key at distance m")
    _legend(figure, axes)
    small_print(figure, *_print(answers))
    return figure


@styled
def kappa(report: Report, layer: int) -> Figure | None:
    """Draw kappa(m) of each head of a layer, in a panel for each row that has it, of its first run.

    Layers count from 0. None if no row rotates both q and k in this one.
    """
    # Heads of different runs do not correspond, so runs cannot be averaged.
    drawn = {
        label: found[0]
        for label, found in report.answers("distance").items()
        if str(layer) in found[0].get("kappa", {})
    }
    if not drawn:
        return None

    titles = [report.rows[label].name for label in drawn]
    figure, panels = panels_of(titles, "κ(m) (logits)", margin=1.0, height=2.1)
    for axes, (label, answer) in zip(panels, drawn.items(), strict=True):
        _draw_heads(axes, label, answer, str(layer))

    most = max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[0]))
    _legend(figure, most)
    small_print(
        figure,
        f"Layer {layer}, counting from 0; one run per row. κ(m) is the score of a head's mean "
        "query with its mean key m tokens earlier. It shows the effect of distance alone, "
        "independent of content. The query's token is at 1.",
    )
    return figure


# -- the panels ------------------------------------------------------------------------------------


def _draw_level(axes: Axes, report: Report, key: str, name: str, style: Style) -> None:
    """Draw each distinct line `key` of rows; if there are several, in the colour of its first row.

    Bounds are scaled to the mean of uniform attention; uniform rows with a window differ.
    """
    answers = report.answers("distance")
    first: dict[tuple[float, ...], str] = {}
    for label, found in answers.items():
        if key in found[0]:
            first.setdefault(tuple(found[0][key]), label)
    for line, label in first.items():
        answer = answers[label][0]
        level = np.array(line, dtype=float)
        if key == "bound":
            level = level * np.mean(answer["uniform"]) / np.mean(level)
        own = {"label": name}
        if len(first) > 1:
            row = report.rows[label]
            own = {"label": f"{name} of {row.name}", "color": look(label, row.number)["color"]}
        heights = np.where(level > 0, level, np.nan)
        axes.plot(_distances(answer) + 1, heights, gid=f"{label} {key}", zorder=1, **style | own)


def _draw_heads(axes: Axes, label: str, answer: Answer, layer: str) -> None:
    heads = np.array(answer["kappa"][layer], dtype=float)
    m = _distances(answer)
    for head, (heights, color) in enumerate(zip(heads, shades(len(heads)), strict=True)):
        style: Style = {"color": color, "linewidth": 0.9, "label": f"head {head}"}
        axes.plot(m + 1, heights, gid=f"{label} head {head}", **style)
    zero_line(axes)
    _distance_axis(axes)


# -- helpers ---------------------------------------------------------------------------------------


def _legend(figure: Figure, axes: Axes) -> None:
    """Write the names of an axes' lines above the figure, in balanced columns."""
    handles, labels = axes.get_legend_handles_labels()
    columns = math.ceil(len(handles) / math.ceil(len(handles) / 5))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def _distances(answer: Answer) -> Array:
    return np.array(answer["m"], dtype=float)


def _octaves(m: Array) -> list[int]:
    """Return the indices of about one distance an octave, to place markers."""
    octave = np.floor(np.log2(m + 1))
    return [int(place) for place in np.unique(octave, return_index=True)[1]]


def _distance_axis(axes: Axes) -> None:
    """Make the axis of distances logarithmic; they count from 1, as it has no place for 0."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda m, _: f"{m / 1000:.3g}k" if m >= 1000 else f"{m:.3g}")
    )
    axes.set_xlabel("distance m + 1 (tokens)")


def _print(answers: Mapping[str, Sequence[Answer]]) -> list[str]:
    said = [
        "Mean over heads, layers and the queries in the second half of a window "
        f"({seeds(len(found) for found in answers.values())} per row). The query's token is at 1. "
        "Dashed: uniform attention, where query i weights its i + 1 keys equally; attention "
        "windows and bidirectional attention have another number of keys."
    ]
    if any("bound" in found[0] for found in answers.values()):
        said.append(
            "Dotted: f(m), a bound on the effect of distance on a score, up to a factor. It is "
            "scaled to the mean of uniform attention, so only its slope is meaningful."
        )
    return said
