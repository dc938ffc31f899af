"""What stands behind a verdict's word where it is by the runs that survived."""

from rope_exp.evidence.comparable import Row


def diverged_mark(row: Row) -> str:
    """Return how many of a row's runs diverged, such as (1 diverged); nothing where none did.

    Nothing of a row without a finished run either: its own word says so.
    """
    count = sum(run.status == "diverged" for run in row.runs)
    return f"({count} diverged)" if count and not row.verdict else ""
