"""Figure of one variant's difference to the reference in every setting with both."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.evidence.significance import MARGIN
from rope_exp.report.content import Report
from rope_exp.report.looks import look
from rope_exp.report.paper.forest import draw_intervals, set_lines
from rope_exp.report.paper.style import (
    GREY,
    SMALL,
    WIDTH,
    close_up,
    limits,
    small_print,
    styled,
)
from rope_exp.report.tables import WORDS

_HEADERS = {0.04: "Δ [95 % interval]", 0.62: "verdict", 0.88: "seeds"}


@styled
def lead(settings: Mapping[str, Report], label: str) -> Figure | None:
    """Draw a variant's difference in each setting, by name; None if fewer than two have one.

    Only settings with next-token prediction are included: with masked tokens, losses differ by
    which variant has begun to learn.
    """
    found = {
        place: report
        for place, report in settings.items()
        if label in report.rows
        and report.rows[label].ours.delta is not None
        and report.runs[0].config.causal
    }
    if len(found) < 2:
        return None

    figure = Figure(figsize=(WIDTH, 1.25 + 0.165 * len(found)))
    axes, words = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.15))
    close_up(figure)
    reports = list(found.values())
    _set_axes(axes, list(found), reports, label)
    words.set_axis_off()
    for at, header in _HEADERS.items():
        across = words.get_xaxis_transform()
        words.text(at, 1.01, header, transform=across, va="bottom", color=GREY, fontsize=SMALL)
    for place, report in enumerate(reports):
        _draw(axes, report, label, place)
        _write(words, report, label, place)

    small_print(
        figure,
        "Thick: the 95 % interval of the difference within a seed; thin: the one that holds for "
        "all differences of the setting's own table (Bonferroni); an arrow: it goes on. Verdicts "
        "are those of that table. Hollow: one seed, which says little.",
        f"Grey band: the margin of {MARGIN:g} nats. Next token on text; settings of more runs "
        "stand first.",
    )
    return figure


def _set_axes(axes: Axes, places: list[str], reports: list[Report], label: str) -> None:
    judged = [report.against[label] for report in reports if label in report.against]
    # A single seed may lie far off, so tested differences set the axis; arrows mark the others.
    means = [each.delta for each in judged]
    ends = [end for each in judged for end in (each.low, each.high)]
    axes.set_xlim(limits([*means, -MARGIN, MARGIN], ends))
    set_lines(axes, places)
    row = reports[0].rows[label]
    axes.set_xlabel(f"loss of {row.name} minus {reports[0].reference.name}'s; left is better")


def _draw(axes: Axes, report: Report, label: str, place: int) -> None:
    style = look(label) | {"linestyle": "none"}
    judged = report.against.get(label)
    if judged is None:
        style["markerfacecolor"] = "none"
    else:
        draw_intervals(axes, judged, place, color=style["color"], gid=str(place))

    delta = report.rows[label].ours.delta
    assert delta is not None
    left, right = axes.get_xlim()
    if left < delta < right:
        axes.plot(delta, place, zorder=4, gid=f"{place} delta", **style)
    else:
        marker, at = (4, left) if delta <= left else (5, right)
        axes.plot(at, place, marker=marker, color=style["color"], zorder=4, clip_on=False)


def _write(axes: Axes, report: Report, label: str, place: int) -> None:
    judged = report.against.get(label)
    if judged is not None:
        said = f"{judged.delta:+.3f} [{judged.low:+.3f}, {judged.high:+.3f}]"
        cells = [said, WORDS[judged.verdict], str(judged.num_seeds)]
    else:
        cells = [f"{report.rows[label].ours.delta:+.3f}", "untested", "1"]
    for at, text in zip(_HEADERS, cells, strict=True):
        axes.text(at, place, text, va="center_baseline", fontsize=SMALL, gid=f"{place} word")
