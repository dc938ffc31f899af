"""What runs at several learning rates say: each variant's best rate, and the common one.

A rate is judged by means over seeds. A mean over other seeds differs by the seeds too, so that only
seeds count which all rates of a variant have.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.runs import Run

FACTOR = "optim.lr"


def losses_by_rate(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Return each variant's losses by its label: a column a rate, a line a seed.

    Args:
        runs: equal but for variant, seed and rate.
    Raises:
        ReportError: they are not.
    """
    losses: dict[str, dict[float, Mapping[int, float]]] = {}
    for row in comparable(runs, ["pe", FACTOR]).values():
        config = row.runs[0].config
        losses.setdefault(config.pe.label, {})[config.optim.lr] = row.losses
    return {
        label: pd.DataFrame(found, dtype=float)
        .dropna(axis="columns", how="all")
        .sort_index()
        .sort_index(axis="columns")
        for label, found in losses.items()
    }


def shared_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return the seeds that all rates have; all of them, where none has."""
    shared = table.dropna()
    return table if shared.empty else shared


def best_rate(table: pd.DataFrame) -> float:
    """Return the rate with the lowest mean of a variant's losses over the seeds that all have."""
    means = shared_seeds(table).mean()
    return float(means.index.to_numpy(dtype=float)[means.argmin()])


def common_rate(runs: Iterable[Run], tables: Mapping[str, pd.DataFrame]) -> float:
    """Return the rate with the most finished runs, and of several the one with the lowest mean."""
    counts = Counter(run.config.optim.lr for run in runs if run.loss is not None)
    means = {label: shared_seeds(table).mean() for label, table in tables.items()}
    together = pd.DataFrame(means).mean(axis="columns")
    return max(counts, key=lambda rate: (counts[rate], -together[rate]))
