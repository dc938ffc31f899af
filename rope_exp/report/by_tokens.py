"""Metrics by training tokens, for the figures and the page."""

from collections.abc import Sequence

import pandas as pd

from rope_exp.evidence.comparable import Row
from rope_exp.evidence.runs import Run

# Axes are scaled to the curves after this share of the run; before it they fall too steeply.
SHOWN_FROM = 0.2


def by_tokens(runs: Sequence[Run], key: str, window: int = 1) -> pd.DataFrame:
    """Return a column for each seed by tokens: the running median over `window` rows with `key`."""
    columns = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        train = run.config.train
        values = {train.tokens_until(row["step"]): row[key] for row in run.metrics if key in row}
        curve = pd.Series(values, dtype=float)
        columns[run.config.seed] = curve.rolling(window, min_periods=1).median()
    return pd.DataFrame(columns, dtype=float).sort_index()


def finished_or_all(row: Row) -> Sequence[Run]:
    """Return a row's finished runs, or all runs if none has finished."""
    finished = [run for run in row.runs if run.status == "finished"]
    return finished or row.runs
