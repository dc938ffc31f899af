"""Choice of learning rates from a sweep: each variant's best one, and the common one.

Learning rates are compared within a seed, because means over different seeds also differ by the
seeds. A seed that was run at a single learning rate says nothing about them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.runs import Run

FACTOR = "optim.lr"


def losses_by_rate(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Return each variant's losses by its label: a column per learning rate, a line per seed.

    Seeds that were run at a single learning rate are left out, and variants without other seeds.

    Args:
        runs: equal except for variant, seed and learning rate.
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
    """Return a variant's mean loss at each learning rate, as if all its seeds had been run at each.

    At the learning rate with the most seeds it is the plain mean. Every other one adds to that its
    mean difference over the seeds that both have, and is left out if they share none.

    Args:
        table: from `losses_by_rate`.
    """
    fullest = table[table.count().idxmax()]
    differences = table.sub(fullest, axis="index").mean()
    return fullest.mean() + differences.dropna()


def best_rate(table: pd.DataFrame) -> float:
    """Return the learning rate with the lowest of a variant's means."""
    means = mean_by_rate(table)
    return float(means.index.to_numpy(dtype=float)[means.argmin()])


def common_rate(runs: Iterable[Run], tables: Mapping[str, pd.DataFrame]) -> float:
    """Return the learning rate with the most finished runs; among equals, the lowest mean wins."""
    counts = Counter(run.config.optim.lr for run in runs if run.loss is not None)
    together = pd.DataFrame({label: mean_by_rate(table) for label, table in tables.items()}).mean(
        axis="columns"
    )
    return max(counts, key=lambda rate: (counts[rate], -together.get(rate, math.inf)))
