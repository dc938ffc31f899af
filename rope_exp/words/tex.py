"""table.tex: the table of rows as a tabular for booktabs."""

import re

import pandas as pd

from rope_exp.report import Report, main_table
from rope_exp.table import NOTHING


def files(report: Report) -> dict[str, str]:
    """Return table.tex, with the caption as its first line."""
    table = main_table(report)
    headings, *lines = table.cells
    aligned = "".join("r" if column.form else "l" for column in table.columns)
    text = pd.DataFrame(lines, columns=headings).to_latex(
        index=False, escape=True, column_format=aligned
    )
    for sign in (("Δ", r"$\Delta$"), (NOTHING, "---"), ("< ", "$<$ "), ("†", r"$\dagger$")):
        text = text.replace(*sign)
    # A hyphen before a number is a minus; after a letter it is part of a name.
    text = re.sub(r"(?<!\w)-(?=\d)", "$-$", text)
    caption = " ".join([*report.told("caption"), "Needs \\usepackage{booktabs}."])
    return {"table.tex": f"% {caption}\n{text}"}
