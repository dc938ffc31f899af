"""Statistics of losses: means, deviations, differences within a seed, ranks and correlation.

A block is one seed: its rows share all that their factors leave equal (initial weights, tokens and
their order). So a row is compared with the reference seed by seed and the differences are averaged;
means are never subtracted. Plain float64, seeds in order.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

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


# In nats: the source calls 0.007 "≈" and 0.012 ">".
MARGIN = 0.01
POWER = 0.8
# Larger numbers of seeds are not reported.
MOST_SEEDS = 200

# For a pair (a, b): a is better than b, worse, equal within the margin, or none is shown yet.
Verdict = Literal["better", "worse", "equivalent", "open"]
SIGNS: Mapping[Verdict, str] = {"better": ">", "worse": "<", "equivalent": "≈", "open": "?"}


@dataclass(frozen=True)
class Judged:
    """The test of one pair of rows (a, b). Differences are in nats, b's loss minus a's.

    Attributes:
        num_seeds: the number of seeds that both have.
        error: the standard error of `delta`.
        low, high: the 95 % interval of this contrast alone.
        wide_low, wide_high: the interval that holds for the whole family (Bonferroni).
        p: of no difference, two-sided, of this contrast alone; p_adjusted: by Holm over the family.
        p_equivalent: of a difference past the margin (two one-sided tests), also by Holm.
        seeds_needed_low, seeds_needed_high: the smallest and the largest total number of seeds that
            would settle an open pair with the power `POWER`, if the true difference lies in the
            95 % interval; None: the pair is settled, or needs more than `MOST_SEEDS`.
    """

    a: str
    b: str
    num_seeds: int
    delta: float
    error: float
    df: int
    low: float
    high: float
    wide_low: float
    wide_high: float
    p: float
    p_adjusted: float
    p_equivalent: float
    verdict: Verdict
    seeds_needed_low: int | None = None
    seeds_needed_high: int | None = None

    @property
    def reversed(self) -> "Judged":
        """The same test of the pair (b, a)."""
        opposite: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
        return replace(
            self,
            a=self.b,
            b=self.a,
            delta=-self.delta,
            low=-self.high,
            high=-self.low,
            wide_low=-self.wide_high,
            wide_high=-self.wide_low,
            verdict=opposite.get(self.verdict, self.verdict),
        )

    @property
    def sign(self) -> str:
        """The sign between a and b: > if a is better."""
        return SIGNS[self.verdict]

    def outcome(self, published: str) -> str:
        """Return the verdict on a published relation between a and b, ">" or "≈".

        "a > b" is contradicted if b is better, or if both are equivalent and a is not shown to be
        better at all; "a ≈ b" is if the family's interval lies beyond the margin.
        """
        if self.sign == published:
            return "confirmed"
        if published == SIGNS["equivalent"]:
            is_outside = self.wide_low > MARGIN or self.wide_high < -MARGIN
            return "contradicted" if is_outside else "open"
        if self.verdict == "equivalent" and self.p_adjusted < ALPHA and self.delta > 0:
            return "confirmed, by less than the margin"
        return "contradicted" if self.verdict in ("worse", "equivalent") else "open"


def judge(
    losses: Mapping[str, Losses] | pd.DataFrame,
    family: Sequence[tuple[str, str]],
    noise: Noise | None,
) -> list[Judged]:
    """Judge the pairs of a family together; differences below `MARGIN` do not matter.

    Args:
        losses: by the rows' labels.
        family: pairs of labels; those without two shared seeds are left out.
        noise: of all rows together, from `layout.measure`.
    """
    table = pd.DataFrame(losses, dtype=float).sort_index()
    found = []
    for a, b in family:
        if a not in table or b not in table:
            continue
        differences = (table[b] - table[a]).dropna().to_numpy()
        count = len(differences)
        if count < 2:
            continue

        # Two rows that share two seeds have a residual.
        assert noise is not None
        error, df = noise.deviation * math.sqrt(2 / count), noise.df
        if noise.method == "paired":
            error, df = float(differences.std(ddof=1)) / math.sqrt(count), count - 1
        found.append((a, b, count, float(differences.mean()), error, df))
    if not found:
        return []

    frame = pd.DataFrame(found, columns=["a", "b", "num_seeds", "delta", "error", "df"])
    delta, error_P, df_P = (frame[key].to_numpy() for key in ("delta", "error", "df"))
    # If differences are equal to the last digit in every seed, the standard error is 0.
    tiny = np.maximum(error_P, np.finfo(float).tiny)
    half, wide = (stats.t.ppf(1 - ALPHA / 2 / n, df_P) * error_P for n in (1, len(found)))
    p = np.asarray(2 * stats.t.sf(np.abs(delta) / tiny, df_P))
    # Of a difference of at least the margin: the larger of both one-sided p-values.
    past_margin = np.asarray(stats.t.sf((MARGIN - np.abs(delta)) / tiny, df_P))
    adjusted, equivalent = holm(p), holm(past_margin)
    # A real difference below the margin does not matter.
    cases = [equivalent < ALPHA, ~(adjusted < ALPHA), delta > 0]
    frame = frame.assign(
        low=delta - half,
        high=delta + half,
        wide_low=delta - wide,
        wide_high=delta + wide,
        p=p,
        p_adjusted=adjusted,
        p_equivalent=equivalent,
        verdict=np.select(cases, ["equivalent", "open", "better"], "worse"),
    )
    lines: Any = frame.to_dict("records")
    judged = [Judged(**line) for line in lines]
    for place, pair in enumerate(judged):
        if pair.verdict == "open":
            fewest, most = _seeds_needed(pair, len(judged))
            judged[place] = replace(pair, seeds_needed_low=fewest, seeds_needed_high=most)
    return judged


def _seeds_needed(pair: Judged, family_size: int) -> tuple[int | None, int | None]:
    """Return the fewest and the most seeds that would settle the pair, as a difference or as none.

    The true difference may lie anywhere in the interval: a large difference and none at all need
    the fewest seeds, and half the margin about the most. The level is that of the first step of
    Holm's rule, so the numbers err on the high side.
    """
    half = MARGIN / 2
    delta_D1 = np.clip([pair.low, -half, 0, half, pair.high], pair.low, pair.high)[:, None]
    counts = np.arange(pair.num_seeds + 1, MOST_SEEDS + 1)
    error = pair.error * np.sqrt(pair.num_seeds / counts)
    # Assume that degrees of freedom keep growing in proportion to the seeds minus one.
    df = np.round(pair.df / (pair.num_seeds - 1) * (counts - 1))

    detects = stats.t.ppf(1 - ALPHA / 2 / family_size, df) * error
    excludes = MARGIN - stats.t.ppf(1 - ALPHA / family_size, df) * error

    # Equivalence can be shown from some number of seeds on. Up to there, count detection alone.
    num_early = int(np.argmax(excludes > 0)) if (excludes > 0).any() else len(counts)
    early = slice(num_early)
    noncentrality_DN = np.abs(delta_D1) / error[early]
    detected_DN = stats.nct.sf(detects[early] / error[early], df[early], noncentrality_DN)

    # From there on, the pair stays open only between the two thresholds.
    inside_DN = [
        stats.norm.cdf((side * delta_D1 - excludes) / error)
        - stats.norm.cdf((side * delta_D1 - detects) / error)
        for side in (1, -1)
    ]
    open_DN = np.maximum(inside_DN, 0).sum(axis=0)

    settled_DN = np.hstack([detected_DN, 1 - open_DN[:, num_early:]]) >= POWER
    needed = [int(counts[row.argmax()]) if row.any() else None for row in settled_DN]
    known = [count for count in needed if count is not None]
    return min(known, default=None), None if None in needed else max(known)
