"""What runs at several learning rates say: each variant's best rate, and the common one.

Rates are held against each other within a seed: means over other seeds would differ by the seeds,
too. A seed that was run at a single rate tells nothing of rates.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.runs import Run

FACTOR = "optim.lr"


def losses_by_rate(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Return each variant's losses by its label: a column a rate, a line a seed of several rates.

    A variant none of whose seeds was run at two rates is left out.

    Args:
        runs: equal but for variant, seed and rate.
    Raises:
        ReportError: they are not.
    """
    losses: dict[str, dict[float, Mapping[int, float]]] = {}
    for row in comparable(runs, ["pe", FACTOR]).values():
        config = row.runs[0].config
        losses.setdefault(config.pe.label, {})[config.optim.lr] = row.losses
    tables = {}
    for label, found in losses.items():
        table = pd.DataFrame(found, dtype=float)
        table = table[table.count(axis="columns") > 1].dropna(axis="columns", how="all")
        if not table.empty:
            tables[label] = table.sort_index().sort_index(axis="columns")
    return tables


def mean_by_rate(table: pd.DataFrame) -> "pd.Series[float]":
    """Return a variant's mean loss at each rate, as if all of its seeds had been run at each.

    It is the mean at the rate with the most seeds, and at every other rate that plus the mean
    difference to it over the seeds that both have. A rate that shares none with it is left out.

    Args:
        table: of `losses_by_rate`.
    """
    fullest = table[table.count().idxmax()]
    differences = table.sub(fullest, axis="index").mean()
    return fullest.mean() + differences.dropna()


def best_rate(table: pd.DataFrame) -> float:
    """Return the rate with the lowest of a variant's means."""
    means = mean_by_rate(table)
    return float(means.index.to_numpy(dtype=float)[means.argmin()])


def common_rate(runs: Iterable[Run], tables: Mapping[str, pd.DataFrame]) -> float:
    """Return the rate with the most finished runs, and of several the one with the lowest mean."""
    counts = Counter(run.config.optim.lr for run in runs if run.loss is not None)
    together = pd.DataFrame({label: mean_by_rate(table) for label, table in tables.items()}).mean(
        axis="columns"
    )
    return max(counts, key=lambda rate: (counts[rate], -together.get(rate, math.inf)))
