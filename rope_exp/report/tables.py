"""The table in its four spellings: CSV, Markdown, LaTeX, and plain text for a terminal.

A table is a list of columns; one more is one line of `columns`. An unfinished or diverged run is a
word, never a number.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from rope_exp.evidence.comparable import Row, spelled
from rope_exp.evidence.contrasts import Contrast
from rope_exp.report.content import Report
from rope_exp.report.sentences import assumptions, caption, notes, orders, summary

DASH = "—"
_TEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "Δ": r"$\Delta$",
        DASH: "---",
    }
)

Value = str | float | None


@dataclass(frozen=True)
class Column:
    """One column: of table.csv under `name`, of the tables for readers under `header`.

    Numbers are spelled by `format`, in table.csv with six decimals. Text has none, and stands on
    the left.
    """

    name: str | None  # None: not in table.csv
    header: str | None  # None: in table.csv alone
    value: Callable[[Row, Contrast], Value]
    format: str = ""

    def spell(self, row: Row, ours: Contrast) -> str:
        """Return a row's cell; an empty one where there is nothing to say."""
        value = self.value(row, ours)
        if value is None or isinstance(value, str):
            return value or ""
        # Exactly 0, the reference's difference to itself, has no sign.
        return format(value, self.format if value else self.format.removeprefix("+"))


def columns(report: Report) -> list[Column]:
    """Return what the table shows, from left to right."""
    told_by = "variant" if report.of_variants else ", ".join(report.keys)
    delta = f"Δ to {report.reference.name}"
    theirs = report.published

    shown = [
        Column("group", None, lambda row, _: row.runs[0].group),
        Column("pe", None, lambda row, _: row.runs[0].config.pe.label),
        Column(None, told_by, lambda row, _: row.name),
        Column("rotate", None, lambda row, _: "".join(row.runs[0].config.pe.rotate)),
        Column(None, "rotates", lambda row, _: " ".join(row.runs[0].config.pe.rotate)),
        Column("num_seeds", "seeds", lambda _, ours: ours.num_seeds, "d"),
        Column("loss_mean", None, lambda _, ours: ours.loss_mean, ".4f"),
        Column(None, "loss (mean)", lambda row, ours: row.verdict or ours.loss_mean, ".4f"),
        Column("loss_sd", "sd over seeds", lambda _, ours: ours.loss_sd, ".4f"),
        Column("delta", delta, lambda _, ours: ours.delta, "+.4f"),
        Column("delta_ci_low", None, _nothing_yet),
        Column("delta_ci_high", None, _nothing_yet),
        Column("p_holm", None, _nothing_yet),
        Column("verdict", None, lambda row, _: row.verdict),
        Column(
            "published_loss", "published loss", lambda row, _: theirs[row.label].loss_mean, ".3f"
        ),
        Column(
            "published_delta", f"published {delta}", lambda row, _: theirs[row.label].delta, "+.3f"
        ),
        Column(None, "rank", lambda _, ours: ours.rank, "d"),
        Column(None, "published rank", lambda row, _: theirs[row.label].rank, "d"),
    ]
    return shown + [_factor_column(key) for key in report.keys if key != "pe"]


def _factor_column(factor: str) -> Column:
    """A factor that no contracted column of table.csv holds stands behind them."""
    return Column(factor, None, lambda row, _: spelled(row.runs[0].config, factor))


def _nothing_yet(_row: Row, _ours: Contrast) -> None:
    """No significance is tested yet: the column stands empty."""


# -- spellings -------------------------------------------------------------------------------------


def csv_table(report: Report) -> str:
    """Return table.csv: six decimals, nats; a cell without a number is empty."""
    kept = {
        column.name: replace(column, format=re.sub(r"\.\d", ".6", column.format))
        for column in columns(report)
        if column.name
    }
    return pd.DataFrame(_cells(report, kept, "")).to_csv(header=False, index=False)


def markdown(report: Report) -> str:
    """Return table.md: the table, the orders, the summary, notes, and every assumption."""
    sides, cells = _for_readers(report)
    cells.insert(1, ["---" if side == "<" else "---:" for side in sides])
    lines = [f"| {' | '.join(line)} |" for line in cells]
    pictures = ["![Loss curves](figures/loss_curves.png)"]
    if report.of_variants:
        pictures.append("![Against the published losses](figures/against_published.png)")

    parts = [
        f"**{caption(report)}**",
        "\n".join(lines),
        "\\\n".join(orders(report)),
        summary(report),
        "\n".join(pictures),
        "Notes:",
        _bullets(notes(report)),
        "Assumptions, which the source leaves open:",
        _bullets(assumptions(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def tex_table(report: Report) -> str:
    """Return table.tex: a tabular for booktabs."""
    sides, cells = _for_readers(report)
    aligned = sides.replace("<", "l").replace(">", "r")
    head, *rows = [" & ".join(cell.translate(_TEX) for cell in line) + r" \\" for line in cells]
    lines = [
        f"% {caption(report)} Needs \\usepackage{{booktabs}}.",
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        head,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        "",
    ]
    return "\n".join(lines)


def plain_table(report: Report) -> str:
    """Return aligned columns for a terminal."""
    sides, cells = _for_readers(report)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "".join(form.format(*line) + "\n" for line in cells)


def _for_readers(report: Report) -> tuple[str, list[list[str]]]:
    """Return each column's side ("<" or ">"), and the cells.

    Where nothing is published of such rows, no column says so.
    """
    kept = {
        column.header: column
        for column in columns(report)
        if column.header and (report.of_variants or not column.header.startswith("published"))
    }
    sides = "".join(">" if column.format else "<" for column in kept.values())
    return sides, _cells(report, kept, DASH)


def _cells(report: Report, kept: Mapping[str, Column], blank: str) -> list[list[str]]:
    """Return the titles, and the cells of each row."""
    lines = [list(kept)]
    for label, ours in report.contrasts.items():
        row = report.rows[label]
        lines.append([column.spell(row, ours) or blank for column in kept.values()])
    return lines
