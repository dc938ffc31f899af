"""The table in its four formats: CSV, Markdown, LaTeX, and plain text for a terminal.

A row is a list of cells; to add a column, add a line in `cells`. An unfinished or diverged run is
shown as a word, never as a number.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pandas as pd

from rope_exp.evidence.comparable import ROW, spelled
from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import Judged, Verdict
from rope_exp.model.count import kept
from rope_exp.report.answers import task_tables
from rope_exp.report.assumptions import assumptions
from rope_exp.report.content import Line, Report
from rope_exp.report.pairs import relations_table
from rope_exp.report.probed import extension_part
from rope_exp.report.sentences import (
    OWN,
    caption,
    mark_change,
    notes,
    spell_interval,
    spell_p,
    summary,
)
from rope_exp.report.spelling import NOTHING, markdown_lines

# Words for a row compared with the reference.
WORDS: Mapping[Verdict, str] = {
    "better": "worse",
    "worse": "better",
    "equivalent": "equivalent",
    "open": "open",
}
_FAMILY = ("p_adjusted", "family", "delta_wide_low", "delta_wide_high")
_FURTHER = ("p_equivalent", "seeds_needed")
_ALONE = ("delta_ci_low_alone", "delta_ci_high_alone", "p_holm_alone", "verdict_alone")
Value = str | float | None


@dataclass(frozen=True)
class Cell:
    """A row's cell in the column `name` of table.csv, and `header` of the tables for readers.

    `format` formats numbers, in table.csv with six decimals. Text has no format, and is aligned
    left.
    """

    name: str  # empty: not in table.csv
    header: str  # empty: only in table.csv
    value: Value
    format: str = ""

    def spell(self, form: str) -> str:
        """Return the value as text; empty for None."""
        if self.value is None or isinstance(self.value, str):
            return self.value or ""
        # The reference's difference to itself is exactly 0, and has no sign.
        return format(self.value, form if self.value else form.removeprefix("+"))


def cells(report: Report, row: Line) -> list[Cell]:
    """Return the cells of a row, from left to right."""
    told_by = "variant" if report.of_variants else ", ".join(report.keys)
    delta = f"Δ to {report.reference.name}"
    ours = row.ours
    theirs = row.theirs
    run = row.runs[0]
    pe = run.config.pe

    shown = [
        Cell("group", "", run.group),
        Cell("pe", "", pe.label),
        Cell("", told_by, row.name),
        Cell("rotate", "", "".join(pe.rotate)),
        Cell("", "rotates", " ".join(pe.rotate)),
        *([cell for cell in _kind_cells(run) if cell.header] if report.of_rows else []),
        Cell("num_seeds", "seeds", ours.num_seeds, "d"),
        Cell("loss_mean", "", ours.loss_mean, ".4f"),
        Cell("", "loss (mean)", row.verdict or ours.loss_mean, ".4f"),
        Cell("loss_sd", "sd over seeds", ours.loss_sd, ".4f"),
        Cell("delta", delta, ours.delta, "+.4f"),
        *_judged_cells(report, row),
        Cell("published_loss", "published loss", theirs.loss_mean, ".3f"),
        Cell("published_delta", f"published {delta}", theirs.delta, "+.3f"),
        Cell("", "rank", ours.rank, "d"),
        Cell("", "published rank", theirs.rank, "d"),
        *_family_cells(report, row),
        *_further_cells(report, row),
    ]
    # Further columns of table.csv follow the guaranteed ones.
    for key in report.keys:
        if key != "pe":
            told = run.config.row_name if key == ROW else spelled(run.config, key)
            shown.append(Cell(key, "", told))
    shown += [cell for cell in _kind_cells(run) if cell.name]
    return shown + _alone_cells(report, row)


def _kind_cells(run: Run) -> list[Cell]:
    """Return the cells of a row's kind of attention, parameters and cache size."""
    attn = run.config.attn
    cached, state = kept(attn, run.config.model, run.config.pe)
    params = run.result.get("params")
    told = f"{cached:,}"
    if state:
        told = f"{cached:,}, and {state:,} once" if cached else f"{state:,} once"
    return [
        Cell("", "kind", attn.kind),
        Cell("", "parameters", params, ",d"),
        Cell("", "cached a token and layer", told),
        Cell("kind", "", attn.label),
        Cell("params", "", params, "d"),
        Cell("cached", "", cached, "d"),
        Cell("state", "", state, "d"),
    ]


def _judged_cells(report: Report, row: Line) -> list[Cell]:
    """Return the cells of the contrast with the reference, judged in the table's family."""
    own_title = [OWN] if report.is_pooled else []
    titles = ["95 % interval", *own_title, "p (Holm)", "verdict"]
    judged = report.against.get(row.label)
    if judged is None:
        return [
            Cell("delta_ci_low", "", None),
            Cell("delta_ci_high", "", None),
            Cell("p_holm", "", None),
            Cell("verdict", "", row.verdict),
            *(Cell("", header, None) for header in titles if report.noise),
        ]

    own = report.alone.against[row.label]
    word = _word(judged, row)
    said = [
        spell_interval(judged),
        *([spell_interval(own)] if report.is_pooled else []),
        spell_p(judged.p_adjusted),
        word + mark_change(judged.verdict, own.verdict),
    ]
    return [
        Cell("delta_ci_low", "", judged.low, "+.4f"),
        Cell("delta_ci_high", "", judged.high, "+.4f"),
        Cell("p_holm", "", judged.p_adjusted, ".4f"),
        Cell("verdict", "", word),
        *(Cell("", header, text) for header, text in zip(titles, said, strict=True)),
    ]


def _family_cells(report: Report, row: Line) -> list[Cell]:
    """Return the cells of the same contrast, judged among all pairs."""
    label = row.label
    reference = report.reference.label
    family = f"{len(report.pairs)} pairs" if report.pairs else ""
    judged = report.pairs.get((label, reference)) or report.pairs.get((reference, label))
    if judged is None:
        return [Cell(name, "", None) for name in _FAMILY]

    # Each pair occurs once, the better row first; the table's Δ is the row minus the reference.
    sign = 1 if judged.b == label else -1
    wide = sorted((sign * judged.wide_low, sign * judged.wide_high))
    return [
        Cell("p_adjusted", "", judged.p_adjusted, ".4f"),
        Cell("family", "", family),
        Cell("delta_wide_low", "", wide[0], "+.4f"),
        Cell("delta_wide_high", "", wide[1], "+.4f"),
    ]


def _further_cells(report: Report, row: Line) -> list[Cell]:
    """Return further cells of the contrast with the reference, judged in the table's family."""
    judged = report.against.get(row.label)
    if judged is None:
        return [Cell(name, "", None) for name in _FURTHER]
    return [
        Cell("p_equivalent", "", judged.p_equivalent, ".4f"),
        Cell("seeds_needed", "", judged.seeds_needed, "d"),
    ]


def _alone_cells(report: Report, row: Line) -> list[Cell]:
    """Return the cells of the same contrast, judged only by its own differences (paired t)."""
    judged = report.alone.against.get(row.label)
    if judged is None:
        return [Cell(name, "", None) for name in _ALONE]
    return [
        Cell("delta_ci_low_alone", "", judged.low, "+.4f"),
        Cell("delta_ci_high_alone", "", judged.high, "+.4f"),
        Cell("p_holm_alone", "", judged.p_adjusted, ".4f"),
        Cell("verdict_alone", "", _word(judged, row)),
    ]


def _word(judged: Judged, row: Line) -> str:
    return f"{WORDS[judged.verdict]} {row.mark}".rstrip()


# -- formats ---------------------------------------------------------------------------------------


def csv_table(report: Report) -> str:
    """Return table.csv, with six decimals and empty cells for missing numbers."""
    lines = []
    for row in report.rows.values():
        kept = [cell for cell in cells(report, row) if cell.name]
        lines.append({cell.name: cell.spell(re.sub(r"\.\d", ".6", cell.format)) for cell in kept})
    return pd.DataFrame(lines).to_csv(index=False)


def markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """Return table.md: the table, the summary, notes, every assumption, and pictures by path."""
    sides, lines = _for_readers(report)

    relations = []
    if report.relations:
        relations = [
            "The published relations, one by one (Δ: the second's loss minus the first's):",
            relations_table(report),
        ]

    parts = [
        f"**{caption(report)}**",
        markdown_lines(lines, sides),
        summary(report),
        *relations,
        *task_tables(report),
        *extension_part(report),
        *(f"![{PurePosixPath(picture).stem}]({picture})" for picture in pictures),
        *_notes(report),
        "Assumptions, which the source leaves open:",
        _bullets(assumptions(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _notes(report: Report) -> list[str]:
    said = _bullets(notes(report))
    return ["Notes:", said] if said else []


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def tex_table(report: Report) -> str:
    """Return table.tex: a tabular for booktabs."""
    sides, lines = _for_readers(report)
    aligned = sides.replace("<", "l").replace(">", "r")
    frame = pd.DataFrame(lines[1:], columns=lines[0])
    table = frame.to_latex(index=False, escape=True, column_format=aligned)
    for sign, in_tex in (("Δ", r"$\Delta$"), (NOTHING, "---"), ("< ", "$<$ "), ("†", r"$\dagger$")):
        table = table.replace(sign, in_tex)
    return f"% {caption(report)} Needs \\usepackage{{booktabs}}.\n{table}"


def plain_table(report: Report) -> str:
    """Return aligned columns for a terminal."""
    sides, lines = _for_readers(report)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "".join(form.format(*line) + "\n" for line in lines)


def _for_readers(report: Report) -> tuple[str, list[list[str]]]:
    """Return each column's alignment ("<" or ">"), and the titles and cells of each line.

    Without a published table, the published columns are left out.
    """
    lines: list[list[str]] = []
    for row in report.rows.values():
        kept = [cell for cell in cells(report, row) if cell.header]
        if report.published is None:
            kept = [cell for cell in kept if not cell.header.startswith("published")]
        lines.append([cell.spell(cell.format) or NOTHING for cell in kept])

    sides = "".join(">" if cell.format else "<" for cell in kept)
    return sides, [[cell.header for cell in kept], *lines]
