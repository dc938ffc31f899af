"""The residual noise of losses in the layout seed x variant, and a test that it is equal.

`significance` judges pairs by it. Plain float64.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from rope_exp.evidence.contrasts import Array, Losses, additive_fit

ALPHA = 0.05
Method = Literal["pooled", "paired"]


@dataclass(frozen=True)
class Noise:
    """The residual noise of the layout, seed x row.

    Attributes:
        deviation: the residual's standard deviation, in nats; a difference of two runs within a
            seed has sqrt(2) times that.
        df: its degrees of freedom.
        p_equal: the p-value of equally noisy rows; None if it cannot be computed.
        method: the source of standard errors: pooled, unless `p_equal` rejects equal noise.
    """

    deviation: float
    df: int
    p_equal: float | None
    method: Method


def measure(losses: Mapping[str, Losses] | pd.DataFrame) -> Noise | None:
    """Return the residual noise of rows' losses; None if they have no residual.

    Args:
        losses: by the rows' labels.
    """
    table_SV = pd.DataFrame(losses, dtype=float).sort_index().to_numpy()
    fitted_SV, rank = additive_fit(table_SV)
    df = int(np.sum(~np.isnan(table_SV))) - rank
    if df < 1:
        return None
    variance = float(np.nansum((table_SV - fitted_SV) ** 2)) / df
    p_equal = unequal_noise(table_SV, variance, df)
    is_unequal = p_equal is not None and p_equal < ALPHA
    return Noise(math.sqrt(variance), df, p_equal, "paired" if is_unequal else "pooled")


def unequal_noise(table_SV: Array, variance: float, df: int) -> float | None:
    """Return the p-value of equally noisy rows; None if it cannot be computed.

    With equal noise, the standard deviation of each pair's differences is sqrt(2) times the
    residual's. An F test checks this for each pair; the result is the smallest p-value after Holm.
    Residuals by row would say less: a noisy row affects the mean of its seed, and so the residuals
    of all rows.

    Args:
        variance, df: of the table's residual.
    """
    if variance == 0:
        return None

    p = []
    for a, b in itertools.combinations(table_SV.T, 2):
        differences = (b - a)[~np.isnan(b - a)]
        # Some degrees must remain with which to compare the pair.
        if 1 < len(differences) <= df:
            own = float(differences.var(ddof=1))
            p.append(deviating(own, len(differences) - 1, variance, df))
    return float(holm(np.array(p)).min()) if len(p) > 1 else None


def deviating(own: float, own_df: int, variance: float, df: int) -> float:
    """Return the two-sided p-value that a pair's variance is twice the layout's, by F.

    A pair's differences use `own_df` of the layout's degrees, and own_df * own / 2 of its sum of
    squares. The rest is independent of them, so own/2 over the rest's variance follows
    F(own_df, df - own_df).
    """
    rest = max(df * variance - own_df * own / 2, np.finfo(float).tiny)
    f = stats.f(own_df, df - own_df)
    ratio = own / 2 / (rest / (df - own_df))
    return 2 * float(min(f.cdf(ratio), f.sf(ratio)))


def holm(p: Array) -> Array:
    """Return p-values adjusted by Holm's step-down rule."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
