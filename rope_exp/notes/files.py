"""The further files of a table: pairs.csv, probes.csv and table.tex."""

import re

import pandas as pd

from rope_exp.report import Part, Report, main_table, parts
from rope_exp.stats import SEEDS_NEEDED
from rope_exp.tables import NOTHING, csv_of

_PAIR_COLUMNS = [
    "a",
    "sign",
    "b",
    "num_seeds",
    "delta",
    "delta_ci_low",
    "delta_ci_high",
    "delta_wide_low",
    "delta_wide_high",
    "p",
    "p_adjusted",
    "p_equivalent",
    *SEEDS_NEEDED,
]


def files(report: Report) -> dict[str, str]:
    """Return table.tex, pairs.csv if any two rows share two seeds, and probes.csv if probed."""
    made = {"table.tex": _tex(report)}
    pairs = report.pairs["all"]
    if not pairs.empty:
        made["pairs.csv"] = csv_of(pairs[_PAIR_COLUMNS])

    # A line for each row, number and place of the probes that have a number for several places.
    tables = []
    for probe, _ in parts("probes"):
        for label, losses in report.numbers(probe).items():
            numbers = {"mean": losses.mean(skipna=False), "sd": losses.std(skipna=False)}
            table = pd.DataFrame(numbers).reset_index()
            table.insert(0, "row", label)
            table.insert(3, "num_seeds", len(losses))
            tables.append(table)
    if tables:
        made["probes.csv"] = pd.concat(tables).to_csv(index=False, float_format="%.6f")
    return made


def _tex(report: Report) -> str:
    """Return the table of rows as a tabular for booktabs, with the caption as its first line."""
    table = main_table(report)
    headings, *lines = table.cells
    aligned = "".join("r" if column.form else "l" for column in table.columns)
    text = pd.DataFrame(lines, columns=headings).to_latex(
        index=False, escape=True, column_format=aligned
    )
    for sign, command in (("Δ", r"$\Delta$"), (NOTHING, "---"), ("< ", "$<$ ")):
        text = text.replace(sign, command)
    # A hyphen before a number is a minus; after a letter it is part of a name.
    text = re.sub(r"(?<!\w)-(?=\d)", "$-$", text)
    caption = " ".join([*report.texts("caption"), "Needs \\usepackage{booktabs}."])
    return f"% {caption}\n{text}"


REPORT = Part(files=files)
