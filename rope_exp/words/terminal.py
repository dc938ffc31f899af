"""The table on a terminal."""

from rope_exp.report import LAST_OF_CSV, Report, main_table

# Above the warnings.
ORDER = -2
_LEFT_OUT = ("rotates", "perplexity", LAST_OF_CSV, "p", "published_loss", "rank", "published_rank")


def terminal(report: Report) -> list[str]:
    """Return aligned columns, without those that a terminal has no room for, and the summary."""
    table = main_table(report).without(*_LEFT_OUT)
    lines = table.cells
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    form = "  ".join(
        f"{{:{'>' if column.form else '<'}{width}}}"
        for column, width in zip(table.columns, widths, strict=True)
    )
    return ["".join(form.format(*line) + "\n" for line in lines), *report.told("summary")]
