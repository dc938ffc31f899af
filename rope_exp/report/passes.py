"""The table of crossings between the held-out loss curves of two variants during training."""

from collections.abc import Sequence

import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.passing import crossing, last_crossing
from rope_exp.evidence.runs import Run
from rope_exp.report.by_tokens import by_tokens
from rope_exp.report.spelling import markdown_table, millions

_KEY = "val/loss"


def passes_within(runs: Sequence[Run], place: str) -> list[str]:
    """Return the table of when one variant finally passes another within runs of one budget.

    Args:
        runs: runs of one size and length, with any budgets.
        place: this size and length, in words.
    Returns:
        The caption and the table; empty if no pair was run.
    """
    budgets: dict[int, dict[str, list[Run]]] = {}
    for run in runs:
        if run.status == "finished":
            of_rows = budgets.setdefault(run.config.train.num_tokens, {})
            of_rows.setdefault(run.config.pe.label, []).append(run)

    lines: list[dict[str | int, str | None]] = []
    for a, b in published.PASSES_WITHIN:
        found: dict[str | int, str | None] = {
            budget: _told(a, b, of_rows) for budget, of_rows in sorted(budgets.items())
        }
        if any(found.values()):
            lines.append({"pair": f"{a}, {b}", **found})
    if not lines:
        return []
    return [
        f"**Who passes whom within a run, at {place}:** the variant that is ahead at the end, and "
        "since how many tokens it is for good, by the held-out losses of runs of that many tokens "
        "in all, between evaluations on a straight line. The mean over the seeds that cross (how "
        "many), with its 95 % interval where all do. A run's rate falls to its end, so that this "
        "is no statement of shorter budgets.",
        markdown_table(pd.DataFrame(lines).rename(columns=_spelled)),
    ]


def _spelled(column: str | int) -> str:
    """Return a column's title. Titles of two budgets may be equal, as they have three digits."""
    return column if isinstance(column, str) else f"{millions(column)} tokens"


def _told(a: str, b: str, of_rows: dict[str, list[Run]]) -> str | None:
    """Report which variant is ahead at the end, and since when; None if no seed has both."""
    if a not in of_rows or b not in of_rows:
        return None
    behind = by_tokens(of_rows[a], _KEY) - by_tokens(of_rows[b], _KEY)
    behind = behind.dropna(axis="columns", how="all").dropna()
    if behind.empty:
        return None

    said = []
    last = float(behind.index[-1])
    is_b = behind.iloc[-1] > 0
    for label, of_label in ((b, behind.loc[:, is_b]), (a, behind.loc[:, ~is_b])):
        if of_label.columns.empty:
            continue
        since = [last_crossing(curve) for _, curve in of_label.items()]
        said.append(f"{label} {_since([each for each in since if each], len(since), last)}")
    return "; ".join(said)


def _since(tokens: Sequence[float], num_seeds: int, last: float) -> str:
    """Format since when a variant is ahead in `num_seeds` seeds; `tokens` are the seeds' crossings.

    The interval is left out unless all seeds crossed, as it would ignore those ahead throughout.
    """
    throughout = num_seeds - len(tokens)
    parts = []
    if tokens:
        mean, low, high = crossing(tokens)
        interval = ""
        if low is not None and high is not None and not throughout:
            end = "the end" if high > last else millions(high)
            interval = f", {millions(low)} to {end}"
        parts.append(f"since {millions(mean)} ({len(tokens)}{interval})")
    if throughout:
        parts.append(f"throughout ({throughout})")
    return ", ".join(parts)
