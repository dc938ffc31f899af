"""Statistics of losses: means, deviations, differences within a seed, ranks and correlation.

A block is one seed: its rows share all that their factors leave equal (initial weights, tokens and
their order). So a row is compared with the reference seed by seed and the differences are averaged;
means are never subtracted. Plain float64, seeds in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

# Validation losses of a row's finished runs, in nats per token, by seed.
Losses = Mapping[int, float]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Contrast:
    """One row's losses, and their differences to the reference's; None if there is no number.

    Standard deviations are of a sample (n - 1) and need at least two values.
    """

    num_seeds: int
    loss_mean: float | None
    loss_sd: float | None
    delta: float | None
    rank: int | None


def additive_fit(table_SV: Array) -> tuple[Array, int]:
    """Fit loss = seed + row by least squares.

    Args:
        table_SV: losses by seed and row; NaN where there is none.
    Returns:
        The fitted losses, including missing ones, and the design's rank. The rank is S + V - 1 if
        shared seeds connect all rows; otherwise no row can be compared with all others.
    """
    num_seeds, num_rows = table_SV.shape
    seed_N, row_N = np.nonzero(~np.isnan(table_SV))
    design = np.hstack([np.eye(num_seeds)[seed_N], np.eye(num_rows)[row_N]])
    effects, _, rank, _ = np.linalg.lstsq(design, table_SV[seed_N, row_N], rcond=None)
    return effects[:num_seeds, None] + effects[num_seeds:], int(rank)


def kendall_tau(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[float, float, int]:
    """Return Kendall's tau-b of two orders, its p-value, and the number of labels in both.

    tau-b = (C - D) / sqrt((n0 - n1)(n0 - n2)), where C and D count concordant and discordant
    pairs, n0 all pairs, n1 and n2 the pairs tied in ours and in theirs. NaN if that is 0/0: fewer
    than two labels, or all equal.
    """
    both = [label for label in ours if label in theirs]
    if len(both) < 2:
        return np.nan, np.nan, len(both)
    test = stats.kendalltau([ours[label] for label in both], [theirs[label] for label in both])
    return float(test.statistic), float(test.pvalue), len(both)


def compare(losses: Mapping[str, Losses], reference: str) -> dict[str, Contrast]:
    """Compare every row with the reference.

    Args:
        losses: by the rows' labels; a row without a finished run has none.
        reference: a label; if it is missing or has no finished run, there are no deltas.
    Returns:
        A contrast for each label, best first; rows without a number come last, and equal rows in
        the order given. Equal rows share the better rank, and the next rank is left out. If shared
        seeds do not connect all rows, none has a rank.
    """
    # One column per row. Seeds ascend, so that sums do not depend on the order of reading.
    table = pd.DataFrame(losses, dtype=float).sort_index()
    differences = table.sub(table.get(reference, np.nan), axis="index")

    contrasts = pd.DataFrame(
        {
            "num_seeds": table.count(),
            "loss_mean": table.mean(),
            "loss_sd": table.std(),
            "delta": differences.mean(),
            "rank": adjusted_means(table).rank(method="min").astype("Int64"),
        },
        index=table.columns,
    )
    ordered = contrasts.sort_values(["rank", "loss_mean"])
    values = ordered.astype(object).where(ordered.notna(), None)
    lines: Any = values.to_dict("index")
    return {label: Contrast(**line) for label, line in lines.items()}


def adjusted_means(table: pd.DataFrame) -> pd.Series:
    """Return the columns' means over all seeds, with fitted losses for seeds that a column lacks.

    Means over different seeds also differ by the seeds; these do not. Empty if shared seeds do not
    connect all columns.

    Args:
        table: losses by seed and row (or another setting); NaN where there is none.
    """
    trained = table.dropna(axis="columns", how="all").dropna(axis="index", how="all")
    fitted_SV, rank = additive_fit(trained.to_numpy())
    if rank < sum(trained.shape) - 1:
        return pd.Series(dtype=float)
    # Rounded, so that rounding errors of the fit do not separate equal rows.
    return pd.DataFrame(fitted_SV, columns=trained.columns).mean().round(9)
