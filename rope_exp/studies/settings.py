"""Each variant's difference to QK-RoPE in every setting with both, in results/settings."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rope_exp.config.campaign_file import SEEDS
from rope_exp.evidence import published
from rope_exp.evidence.comparable import spelled
from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import MARGIN
from rope_exp.report.content import Report
from rope_exp.report.looks import look
from rope_exp.report.paper.forest import draw_intervals, set_lines
from rope_exp.report.paper.style import (
    GREY,
    SMALL,
    WIDTH,
    close_up,
    files_of,
    limits,
    small_print,
    styled,
)
from rope_exp.report.spelling import markdown_table, millions
from rope_exp.report.tables import WORDS

_HEADERS = {0.04: "Δ [95 % interval]", 0.62: "verdict", 0.88: "seeds"}
# Best first, according to the only published table of all nine variants.
COLUMNS = [label for label in published.TABLE.losses if label != published.REFERENCE]


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return settings.md, settings.csv and the figure, if all campaigns are asked for."""
    if len(asked) < len(records):
        return {}
    return {f"settings/{name}": content for name, content in settings_files(tables).items()}


def settings_files(tables: Mapping[str, Report]) -> dict[str, bytes]:
    """Return the files by name; empty with fewer than two settings.

    Tables without the reference, and tables with rows that are not variants, are left out.
    """
    settings = _settings(tables)
    if len(settings) < 2:
        return {}

    titles = _titles(settings)
    names = {label: row.name for each in settings.values() for label, row in each.rows.items()}
    parts = [
        f"**What each variant's loss is minus that of {names[published.REFERENCE]}, in every "
        "setting that both were run in:** the mean within a seed, and of how many seeds. A star: "
        "the test of the setting's own table tells it from 0, by Holm over the differences there, "
        "which takes two seeds. Settings of more runs stand first, and one whose cells are all "
        "another's too, run again, is left out. Of one seed a difference says little. Intervals, "
        "and variants beyond the nine, are in settings.csv."
    ]
    of_text = {place: report for place, report in settings.items() if report.task is None}
    others = {place: report for place, report in settings.items() if report.task is not None}
    for title, found in (("Text, in nats per token", of_text), ("Generated data", others)):
        if found:
            lines = [
                {"setting": f"[{titles[place]}](../{place}/table.md)", **_line(report, names)}
                for place, report in found.items()
            ]
            parts += [f"{title}:", markdown_table(pd.DataFrame(lines))]

    titled = {titles[place]: report for place, report in of_text.items()}
    drawn = files_of("lead", lead(titled, published.RIVAL))
    parts += [f"![{PurePosixPath(name).stem}]({name})" for name in drawn]
    every = pd.DataFrame([line for item in settings.items() for line in _long(*item)])
    return {
        "settings.md": ("\n\n".join(parts) + "\n").encode(),
        "settings.csv": every.to_csv(
            index=False, float_format="%.6f", lineterminator="\n"
        ).encode(),
        **drawn,
    }


def _settings(tables: Mapping[str, Report]) -> dict[str, Report]:
    """Return the tables that compare variants with the reference, those with most runs first.

    A table whose cells all occur in an earlier one, run again, is left out.
    """
    found = {
        place: report
        for place, report in tables.items()
        if report.of_variants
        and report.reference.label == published.REFERENCE
        and any(_delta(report, label) is not None for label in COLUMNS)
    }
    kept: dict[str, Report] = {}
    seen: list[set[str]] = []
    for place, report in sorted(found.items(), key=lambda item: (-len(item[1].runs), item[0])):
        cells = {run.config.config_sha256 for run in report.runs}
        if not any(cells <= others for others in seen):
            kept[place] = report
            seen.append(cells)
    return kept


def _delta(report: Report, label: str) -> float | None:
    return report.rows[label].ours.delta if label in report.rows else None


def _titles(settings: Mapping[str, Report]) -> dict[str, str]:
    """Return a title for each setting: its campaign, and its differences from others there."""
    titles = {}
    for place, report in settings.items():
        run = report.runs[0]
        alike = [each.runs[0] for each in settings.values() if each.groups == report.groups]
        words = [run.group]
        for key in [key for key in run.factors if key not in SEEDS]:
            value = spelled(run.config, key)
            if any(spelled(other.config, key) != value for other in alike):
                words.append(f"{key.rpartition('.')[2]}={value}")
        kinds = {other.config.attn.label for other in alike}
        if kinds != {"softmax"}:
            words.append(run.config.attn.label)
        titles[place] = ", ".join(words)
    return titles


def _line(report: Report, names: Mapping[str, str]) -> dict[str, str | None]:
    """Return a setting's line of the table, without its name."""
    line: dict[str, str | None] = {}
    if report.task is not None:
        line["in"] = report.unit
    line |= {key: millions(value) for key, value in _sizes(report).items()}
    line["warmup"] = f"{report.runs[0].config.num_warmup_steps:,}"
    named = {label: names[label].removesuffix("-RoPE") for label in COLUMNS if label in names}
    return line | {name: _cell(report, label) for label, name in named.items()}


def _cell(report: Report, label: str) -> str | None:
    delta = _delta(report, label)
    if delta is None:
        return None
    judged = report.against.get(label)
    if judged is None:
        return f"{delta:+.3f} (1)"
    star = "*" if judged.verdict in ("better", "worse") else ""
    return f"{delta:+.3f}{star} ({judged.num_seeds})"


def _long(place: str, report: Report) -> Iterator[dict[str, Any]]:
    """Yield a line of the CSV for each variant of a setting that shares a seed with QK-RoPE."""
    for label, row in report.rows.items():
        if row.ours.delta is None or label == report.reference.label:
            continue
        judged = report.against.get(label)
        yield {
            "setting": place,
            "pe": label,
            "unit": report.unit,
            **_sizes(report),
            "warmup_steps": report.runs[0].config.num_warmup_steps,
            "num_seeds": judged.num_seeds if judged else 1,
            "delta": row.ours.delta,
            "delta_ci_low": judged and judged.low,
            "delta_ci_high": judged and judged.high,
            "p_holm": judged and judged.p_adjusted,
            "verdict": WORDS[judged.verdict] if judged else "untested",
        }


def _sizes(report: Report) -> dict[str, int]:
    run = report.runs[0]
    return {"parameters": run.result["params"], "tokens": run.config.train.num_tokens}


# -- the figure ------------------------------------------------------------------------------------


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
        "Thick: the 95 % interval by the pair's own SD over seeds (paired t); ticks: by the noise "
        "of all rows, where the setting's table pools it; thin: the one that holds for all "
        "differences of that table (Bonferroni); an arrow: it goes on. Verdicts are those of that "
        "table. Hollow: one seed, which says little.",
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
        draw_intervals(axes, report, label, place, color=style["color"], gid=str(place))

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
        own = report.alone.against[label]
        said = f"{own.delta:+.3f} [{own.low:+.3f}, {own.high:+.3f}]"
        cells = [said, WORDS[judged.verdict], str(judged.num_seeds)]
    else:
        cells = [f"{report.rows[label].ours.delta:+.3f}", "untested", "1"]
    for at, text in zip(_HEADERS, cells, strict=True):
        axes.text(at, place, text, va="center_baseline", fontsize=SMALL, gid=f"{place} word")
