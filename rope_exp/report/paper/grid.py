"""Figure 2: the 16 subsets as a grid, rotation of Q and K against rotation of V and O."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rope_exp.report.content import Line, Report
from rope_exp.report.looks import parts
from rope_exp.report.paper.style import GREY, INK, SMALL, WIDTH, Style, small_print, styled
from rope_exp.report.tables import WORDS

_SCORES = ("", "q", "k", "qk")
_VALUES = ("", "v", "o", "vo")
# Blue is better than the reference, red is worse, and white is equal.
_COLOURS = "RdBu_r"
# Cells further from white than this share of the scale have white text.
_DARK = 0.6


@styled
def grid(report: Report) -> Figure | None:
    """Draw each subset's mean difference; None if no subset has one."""
    cells = {}
    for row in report.rows.values():
        place = parts(row.label)
        if place is not None:
            cells[_SCORES.index(place[0]), _VALUES.index(place[1])] = row
    deltas = np.full((4, 4), np.nan)
    for where, row in cells.items():
        deltas[where] = np.nan if row.ours.delta is None else row.ours.delta
    if np.isnan(deltas).all():
        return None

    figure = Figure(figsize=(WIDTH, 3.6))
    axes = figure.subplots()
    mesh = _colour(axes, deltas)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=30)
    bar.set_label(f"loss minus {report.reference.name}'s ({report.unit})")
    bar.outline.set_visible(False)

    for i in range(4):
        for j in range(4):
            _write(axes, report, cells.get((i, j)), i, j, mesh)
    _name(axes)
    corner = "; in the corner, in italics, the published difference" if report.published else ""
    small_print(
        figure,
        f"Group {report.groups}. In a cell: the mean difference within a seed, half its 95 % "
        f"interval and the verdict where there are two seeds{corner}. A verdict is by the runs "
        "that did not diverge. Hatched: not run.",
    )
    return figure


def _colour(axes: Axes, deltas: np.ndarray) -> QuadMesh:
    """Colour the cells with a number, on a scale that is symmetric about 0."""
    # Colours at the dark ends of the scheme are hard to distinguish.
    most = 1.15 * max(float(np.nanmax(np.abs(deltas))), 1e-3)
    return axes.pcolormesh(
        np.ma.masked_invalid(deltas),
        cmap=_COLOURS,
        vmin=-most,
        vmax=most,
        edgecolors="white",
        linewidth=2,
        gid="cells",
    )


def _write(axes: Axes, report: Report, row: Line | None, i: int, j: int, mesh: QuadMesh) -> None:
    """Write a cell's numbers, or mark it as empty."""
    if row is None:
        empty = Rectangle((j + 0.02, i + 0.02), 0.96, 0.96, hatch="////", facecolor="white")
        empty.set(edgecolor="#DDDDDD", linewidth=0)
        axes.add_patch(empty)
        return

    delta = row.ours.delta
    if delta is None:
        word = row.verdict or "no shared seed"
        axes.text(j + 0.5, i + 0.5, word, ha="center", va="center", color=GREY)
    else:
        _, most = mesh.get_clim()
        ink = "white" if abs(delta) / most > _DARK else INK
        number = f"{delta:+.4f}" if delta else "0"
        gid = f"{row.label} delta"
        axes.text(j + 0.5, i + 0.47, number, ha="center", va="center", color=ink, size=10, gid=gid)
        _write_words(axes, report, row, i, j, ink)
        _publish(axes, row, i, j, ink)


def _write_words(axes: Axes, report: Report, row: Line, i: int, j: int, ink: str) -> None:
    """Write the test's result below the number."""
    judged = report.against.get(row.label)
    said = "reference" if row.label == report.reference.label else ""
    if judged is not None:
        said = f"± {judged.high - judged.delta:.4f}  {WORDS[judged.verdict]}"
    mark = row.mark
    if mark:
        said = f"{said}\n{mark}".lstrip()
    axes.text(j + 0.5, i + 0.77, said, ha="center", va="center", color=ink, fontsize=SMALL)


def _publish(axes: Axes, row: Line, i: int, j: int, ink: str) -> None:
    delta = row.theirs.delta
    if delta is None or not delta:
        return
    style: Style = {"style": "italic", "fontsize": SMALL, "color": ink}
    gid = f"{row.label} published"
    axes.text(j + 0.95, i + 0.06, f"{delta:+.3f}", ha="right", va="top", gid=gid, **style)


def _name(axes: Axes) -> None:
    """Name rows and columns by their rotated sites."""
    places = [place + 0.5 for place in range(4)]
    axes.set_xticks(places, [site.upper() or "none" for site in _VALUES])
    axes.set_yticks(places, [site.upper() or "none" for site in _SCORES])
    axes.set(xlabel="rotated of V and O", ylabel="rotated of Q and K")
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.tick_params(length=0, labelsize=matplotlib.rcParams["font.size"])
    axes.spines[:].set_visible(False)
