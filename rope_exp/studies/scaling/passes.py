"""Crossings between the held-out loss curves of two variants, after which one stays ahead.

Both curves have one seed, budget and schedule, so their learning rates are equal at each step. A
crossing within a run is not one of full schedules: a budget that ends there has another schedule.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from rope_exp.evidence.runs import Run
from rope_exp.report.by_tokens import by_tokens
from rope_exp.report.spelling import markdown_table, millions
from rope_exp.studies.scaling.fit import LEVEL

_KEY = "val/loss"
# Pairs of variants to check for a crossing: does the second pass the first, and where?
PASSES = (
    ("qk_rope", "vo_rope"),
    ("qk_rope", "qkvo_rope"),
    ("vo_rope", "qkvo_rope"),
    ("nope", "v_rope"),
    ("nope", "o_rope"),
    ("nope", "q_rope"),
    ("nope", "k_rope"),
)
# For curves within training also these: variants that lead QK at first, and single sites.
PASSES_WITHIN = (
    *PASSES,
    ("qk_rope", "qkv_rope"),
    ("qk_rope", "v_rope"),
    ("qk_rope", "o_rope"),
    ("qk_rope", "k_rope"),
    ("qk_rope", "nope"),
    ("k_rope", "v_rope"),
    ("k_rope", "o_rope"),
)


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
    for a, b in PASSES_WITHIN:
        found: dict[str | int, str | None] = {
            budget: _told(a, b, of_rows) for budget, of_rows in sorted(budgets.items())
        }
        if any(found.values()):
            lines.append({"pair": f"{a}, {b}", **found})
    if not lines:
        return []
    return [
        f"**Crossings within a run, at {place}:** the variant that is ahead at the end, and the "
        "tokens after which it stays ahead, for runs of each budget. Held-out losses are "
        "interpolated linearly between evaluations. Means are over the seeds that cross (their "
        "number in parentheses), with a 95 % interval if all cross. The learning rate decays to "
        "the end of a run, so this says nothing about shorter budgets.",
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


# -- crossings -------------------------------------------------------------------------------------


def last_crossing(difference: pd.Series) -> float | None:
    """Return the tokens at which a curve changes its sign for the last time; None if it never does.

    Args:
        difference: by tokens, ascending; linear between two of them. A 0 counts as below.
    """
    values = difference.to_numpy(dtype=float)
    tokens = difference.index.to_numpy(dtype=float)
    is_ahead = values > 0
    [changes] = np.nonzero(is_ahead[1:] != is_ahead[:-1])
    if not changes.size:
        return None
    last = changes[-1]
    before, after = values[last], values[last + 1]
    share = before / (before - after)
    return float(tokens[last] + share * (tokens[last + 1] - tokens[last]))


def crossing(tokens: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return where a difference changes its sign for good, over seeds: the geometric mean.

    The ends of its 95 % interval follow, by Student's t over the logarithms; None with one seed.
    """
    logs = np.log(tokens)
    mean = float(logs.mean())
    if len(logs) == 1:
        return float(np.exp(mean)), None, None
    error = float(logs.std(ddof=1)) / np.sqrt(len(logs))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * error
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))
