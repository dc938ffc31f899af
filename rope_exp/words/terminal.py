"""The table on a terminal."""

import pandas as pd

from rope_exp.report import LAST_OF_CSV, Report, main_table

# Above the warnings.
ORDER = -2
_LEFT_OUT = ("rotates", "perplexity", LAST_OF_CSV, "p", "published_loss", "rank", "published_rank")


def terminal(report: Report) -> list[str]:
    """Return aligned columns, without those that a terminal has no room for, and the summary."""
    headings, *lines = main_table(report).without(*_LEFT_OUT).cells
    table = pd.DataFrame(lines, columns=headings).to_string(index=False)
    return [f"{table}\n", *report.told("summary")]
