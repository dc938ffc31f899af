"""What losses say: means, deviations, differences within a seed, ranks and rank correlation.

Blocks are seeds: within one, all rows share what their factors leave equal (initial weights,
tokens and their order), so a row is held against the reference seed by seed and the differences
are averaged, never the means subtracted. Plain float64, seeds in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Validation losses of a row's finished runs, in nats per token, by seed.
Losses = Mapping[int, float]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Contrast:
    """One row's losses, and how they differ from the reference's; None where there is no number.

    Deviations are those of a sample (n - 1), of two values at least.
    """

    num_seeds: int
    loss_mean: float | None
    loss_sd: float | None
    delta: float | None
    delta_sd: float | None
    rank: int | None


def additive_fit(table_SV: Array) -> tuple[Array, int]:
    """Fit loss = seed + row by least squares.

    Args:
        table_SV: losses by seed and row; NaN where there is none.
    Returns:
        What the fit has in each place, of missing losses too, and the design's rank. That is
        S + V - 1 where shared seeds connect all rows; else no row can be held against all others.
    """
    num_seeds, num_rows = table_SV.shape
    seed_N, row_N = np.nonzero(~np.isnan(table_SV))
    design = np.hstack([np.eye(num_seeds)[seed_N], np.eye(num_rows)[row_N]])
    effects, _, rank, _ = np.linalg.lstsq(design, table_SV[seed_N, row_N], rcond=None)
    return effects[:num_seeds, None] + effects[num_seeds:], int(rank)


def kendall_tau(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[float | None, int]:
    """Return Kendall's tau-b over the labels that both have, and their number.

    tau-b = (C - D) / sqrt((n0 - n1)(n0 - n2)), where C and D count concordant and discordant
    pairs, n0 all pairs, n1 and n2 the pairs tied in ours and in theirs. None where that is 0/0:
    fewer than two labels, or all equal.
    """
    tau = pd.Series(ours).corr(pd.Series(theirs), method="kendall", min_periods=2)
    return None if np.isnan(tau) else tau, len(ours.keys() & theirs.keys())


def compare(losses: Mapping[str, Losses], reference: str) -> dict[str, Contrast]:
    """Hold every row against the reference.

    Args:
        losses: by the rows' labels; a row without a finished run has none.
        reference: a label; without it, or without a finished run of it, there are no deltas.
    Returns:
        A contrast for each label, best first; rows without a number last, and equal rows in the
        order given. Equal rows share the better rank, and the next rank is left out. Where shared
        seeds do not connect all rows, none has a rank.
    """
    # A column a row. By ascending seed, so that sums do not depend on the order of reading.
    table = pd.DataFrame(losses, dtype=float).sort_index()
    differences = table.sub(table.get(reference, np.nan), axis="index")

    # The fields of `Contrast`, in their order.
    contrasts = pd.DataFrame(
        {
            "num_seeds": table.count(),
            "loss_mean": table.mean(),
            "loss_sd": table.std(),
            "delta": differences.mean(),
            "delta_sd": differences.std(),
            "rank": _adjusted_means(table).rank(method="min").astype("Int64"),
        },
        index=table.columns,
    )
    ordered = contrasts.sort_values(["rank", "loss_mean"])
    values = ordered.astype(object).where(ordered.notna(), None)
    return {label: Contrast(*row) for label, *row in values.itertuples(name=None)}


def _adjusted_means(table: pd.DataFrame) -> pd.Series:
    """Return rows' means over all seeds, with what the fit has for those that a row lacks.

    By these rows are ranked, since means over different seeds differ by the seeds, too. Empty where
    the fit cannot hold all rows against each other.
    """
    trained = table.dropna(axis="columns", how="all").dropna(axis="index", how="all")
    fitted_SV, rank = additive_fit(trained.to_numpy())
    if rank < sum(trained.shape) - 1:
        return pd.Series(dtype=float)
    # Rounded, so that what is lost in the fit parts no equal rows.
    return pd.DataFrame(fitted_SV, columns=trained.columns).mean().round(9)
