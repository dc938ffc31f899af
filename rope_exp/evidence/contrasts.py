"""What losses say: means, deviations, differences within a seed, ranks and rank correlation.

Blocks are seeds: within one, all rows share what their factors leave equal (initial weights,
tokens and their order), so a row is held against the reference seed by seed and the differences
are averaged, never the means subtracted. Plain float64, seeds in order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

# Validation losses of a row's finished runs, in nats per token, by seed.
Losses = Mapping[int, float]


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
        order given. Equal rows share the better rank, and the next rank is left out.
    """
    # A column a row. By ascending seed, so that sums do not depend on the order of reading.
    table = pd.DataFrame(losses, dtype=float).sort_index()
    differences = table.sub(table.get(reference, np.nan), axis="index")

    # Only over seeds that all rows with a loss have finished can means be read as an order: a mean
    # over other seeds differs by the seeds too.
    shared = table.dropna(axis="columns", how="all").dropna()

    # The fields of `Contrast`, in their order.
    contrasts = pd.DataFrame(
        {
            "num_seeds": table.count(),
            "loss_mean": table.mean(),
            "loss_sd": table.std(),
            "delta": differences.mean(),
            "delta_sd": differences.std(),
            "rank": shared.mean().rank(method="min").astype("Int64"),
        },
        index=table.columns,
    )
    ordered = contrasts.sort_values(["rank", "loss_mean"])
    values = ordered.astype(object).where(ordered.notna(), None)
    return {label: Contrast(*row) for label, *row in values.itertuples(name=None)}
