"""Figure of longer contexts: the loss by length, as trained and with frequencies for that length.

The input is the answers to the probe `extension` (evaluation/extension.py).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rope_exp.config.tasks import TEXT_UNIT
from rope_exp.report.content import Report
from rope_exp.report.paper.style import (
    GREY,
    INK,
    Style,
    log_axis,
    panels_of,
    seeds,
    small_print,
    styled,
)
from rope_exp.report.probed import METHOD_NAMES, PAIR_NAMES, Answer, extended_losses

# After Paul Tol's "high contrast" and "muted" schemes.
_LOOKS: Mapping[str, Style] = {
    "as_trained": {"color": INK, "marker": "o"},
    "interpolation": {"color": "#BB5566", "marker": "v"},
    "ntk_aware": {"color": "#C8961E", "marker": "s"},
    "yarn": {"color": "#004488", "marker": "D"},
}
_DASHES: Mapping[str, Style] = {
    "": {"linestyle": "-"},
    "qk": {"linestyle": "-"},
    "vo": {"linestyle": (0, (4, 2))},
    "qkvo": {"linestyle": (0, (1, 1.2))},
}


@styled
def extension(report: Report) -> Figure | None:
    """Draw a row's mean losses by length, a line for each method and its sites; None without."""
    answers = report.answers("extension")
    if not answers:
        return None

    titles = [report.rows[label].name for label in answers]
    figure, panels = panels_of(titles, f"loss ({TEXT_UNIT})", margin=1.1, height=2.2)
    drawn: set[str] = set()
    for axes, (label, found) in zip(panels, answers.items(), strict=True):
        drawn |= _draw(axes, label, found)

    handles = [Line2D([], [], label=METHOD_NAMES[each], **_LOOKS[each]) for each in _LOOKS]
    for sites in [each for each in PAIR_NAMES if each in drawn]:
        handles.append(Line2D([], [], color=GREY, label=PAIR_NAMES[sites], **_DASHES[sites]))
    figure.legend(handles=handles, loc="outside upper center", ncols=math.ceil(len(handles) / 2))
    small_print(
        figure,
        "Held-out windows, in training lengths "
        f"({seeds(len(found) for found in answers.values())} per row). Colour: method that extends "
        "the frequencies to longer windows. Dash: sites that rotate at these frequencies; other "
        "sites rotate as trained. YaRN also sharpens the scores if it extends q and k.",
    )
    return figure


def _draw(axes: Axes, label: str, answers: Sequence[Answer]) -> set[str]:
    """Draw one row, and return the sites of its lines."""
    lengths = np.array(answers[0]["lengths"], dtype=float)
    factors = lengths / lengths[0]
    losses = extended_losses(answers)
    for (method, sites), of_runs in losses.items():
        style = {**_LOOKS[method], **_DASHES[sites], "linewidth": 0.9, "markersize": 3}
        gid = f"{label} {method} {sites}".rstrip()
        axes.plot(factors, of_runs.mean(axis=0), gid=gid, **style)
    log_axis(axes, factors.tolist(), lambda factor: f"{factor:g}×")
    axes.set_xlabel("window (training lengths)")
    return {sites for _, sites in losses}
