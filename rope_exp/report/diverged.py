"""Suffix for a verdict when some seeds diverged, e.g. `(1 diverged)`."""

from rope_exp.evidence.comparable import Row


def diverged_mark(row: Row) -> str:
    """Return the number of a row's diverged runs, such as `(1 diverged)`; empty if there are none.

    Also empty for a row without a finished run, as its verdict already says so.
    """
    count = sum(run.status == "diverged" for run in row.runs)
    return f"({count} diverged)" if count and not row.verdict else ""
