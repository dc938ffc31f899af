"""Which differences are real: the test of docs/protocol.md, its families, and what it says.

Losses form a two-way layout, seed x variant, with holes where a variant has fewer seeds:

    loss_sv = mean_v + block_s + e_sv.

A contrast of two variants is the mean of their differences within the seeds that both have. Its
standard error is s sqrt(2/n), with s^2 the residual variance of the layout, pooled over variants
(`pooled`), or the deviation of these differences alone (`paired`). Which of the two is looked up in
the runs themselves: pooled, unless variants are seen to be unequally noisy. Plain float64.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from rope_exp.evidence.contrasts import Losses

ALPHA = 0.05
# In nats: the source calls 0.007 "≈" and 0.012 ">".
MARGIN = 0.01
POWER = 0.8
# More seeds than these are not worth a number.
MOST_SEEDS = 200

Method = Literal["pooled", "paired"]
# Of a pair (a, b): is a better, worse, as good as b within the margin, or not to be told yet.
Verdict = Literal["better", "worse", "equivalent", "open"]
SIGNS: Mapping[Verdict, str] = {"better": ">", "worse": "<", "equivalent": "≈", "open": "?"}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """What the runs say of one pair of rows (a, b). Differences are in nats, b's loss minus a's.

    Attributes:
        num_seeds: that both have.
        error: the standard error of `delta`.
        low, high: of the 95 % interval of this contrast alone.
        wide_low, wide_high: of the interval that holds for the whole family (Bonferroni).
        p: of no difference, two-sided, of this contrast alone; p_adjusted: by Holm over the family.
        p_equivalent: of a difference past the margin (two one-sided tests), by Holm likewise.
        seeds_needed: how many seeds in all would settle an open pair, with the power `POWER` if the
            difference is what it is now; None: it is settled, or more than `MOST_SEEDS`.
    """

    a: str
    b: str
    margin: float
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
    seeds_needed: int | None

    @property
    def sign(self) -> str:
        """How the pair is written: a > b where a is better."""
        return SIGNS[self.verdict]

    def outcome(self, published: str) -> str:
        """Return what the runs say of a published relation between a and b, ">" or "≈".

        "a > b" is contradicted where b is better, or where both are equivalent and a is not shown
        to be better at all; "a ≈ b" where the family's interval lies beyond the margin.
        """
        if self.sign == published:
            return "confirmed"
        if published == SIGNS["equivalent"]:
            is_outside = self.wide_low > self.margin or self.wide_high < -self.margin
            return "contradicted" if is_outside else "open"
        if self.verdict == "equivalent" and self.p_adjusted < ALPHA and self.delta > 0:
            return "confirmed, by less than the margin"
        return "contradicted" if self.verdict in ("worse", "equivalent") else "open"


def judge(
    losses: Mapping[str, Losses],
    family: Sequence[tuple[str, str]],
    *,
    method: Method | None = None,
    margin: float = MARGIN,
) -> list[Judged]:
    """Judge the pairs of a family together.

    Args:
        losses: by the rows' labels; all rows help to know the residual where it is pooled.
        family: pairs of labels; those without two shared seeds are left out.
        method: how the standard error is known; None: as `choose_method` says.
        margin: in nats; differences below it do not matter.
    """
    table = pd.DataFrame(losses, dtype=float).sort_index()
    method = method or choose_method(losses)
    variance, pooled_df = residual_variance(table.to_numpy())

    pairs = []
    for a, b in family:
        if a not in table or b not in table:
            continue
        differences = (table[b] - table[a]).dropna().to_numpy()
        count = len(differences)
        if count < 2:
            continue
        error = math.sqrt(2 * variance / count)
        df = pooled_df
        if method == "paired":
            error = float(differences.std(ddof=1)) / math.sqrt(count)
            df = count - 1
        pairs.append(_judge_one(a, b, float(differences.mean()), error, df, count, margin))
    return _judge_family(pairs)


def choose_method(losses: Mapping[str, Losses]) -> Method:
    """Return how standard errors are known: pooled, unless rows are seen to be unequally noisy."""
    p = unequal_noise(pd.DataFrame(losses, dtype=float).sort_index().to_numpy())
    return "paired" if p is not None and p < ALPHA else "pooled"


def all_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Return every pair once, in the order of the labels."""
    return list(itertools.combinations(labels, 2))


def residuals(table_SV: Array) -> tuple[Array, int]:
    """Return e of the additive layout, seed x variant, by least squares, and its degrees.

    Of a whole table e_sv = x_sv - x_s. - x_.v + x_.. with (S - 1)(V - 1) degrees of freedom; where
    a loss is missing (NaN), so is its residual.
    """
    residual_SV = np.full(table_SV.shape, np.nan)
    seed_N, variant_N = np.nonzero(~np.isnan(table_SV))
    if not len(seed_N):
        return residual_SV, 0

    num_seeds, num_variants = table_SV.shape
    design = np.hstack([np.eye(num_seeds)[seed_N], np.eye(num_variants)[variant_N]])
    loss_N = table_SV[seed_N, variant_N]
    fitted, _, rank, _ = np.linalg.lstsq(design, loss_N, rcond=None)
    residual_SV[seed_N, variant_N] = loss_N - design @ fitted
    return residual_SV, len(loss_N) - int(rank)


def residual_variance(table_SV: Array) -> tuple[float, int]:
    """Return the residual variance s^2 of the layout and its degrees; NaN where it has none."""
    residual_SV, df = residuals(table_SV)
    if df < 1:
        return math.nan, 0
    return float(np.nansum(residual_SV**2)) / df, df


def unequal_noise(table_SV: Array) -> float | None:
    """Return the p-value that rows are equally noisy; None where it cannot be told.

    If they are, the deviation of each pair's differences is that of the residual, times sqrt(2).
    The smallest p-value of any pair's F test of that, by Holm. Residuals by row would say less: a
    noisy row is in the mean of its seed, and so in the residuals of all.
    """
    variance, df = residual_variance(table_SV)
    if df < 1 or variance == 0:
        return None

    p = []
    for a, b in itertools.combinations(table_SV.T, 2):
        differences = (b - a)[~np.isnan(b - a)]
        # A rest must be left to hold the pair against.
        if 1 < len(differences) <= df:
            own = np.array(differences.var(ddof=1))
            p.append(deviating(own, len(differences) - 1, np.array(variance), df))
    return float(holm(np.array(p)).min()) if len(p) > 1 else None


def deviating(own: Array, own_df: int, variance: Array, df: int) -> Array:
    """Return the two-sided p-value that a pair's variance is twice the layout's, by F.

    A pair's differences hold `own_df` of the layout's degrees, and own_df * own / 2 of its sum of
    squares. What is left of both is independent of them, so that own/2 over the rest's variance
    follows F(own_df, df - own_df).
    """
    rest = df * variance - own_df * own / 2
    rest_variance = np.maximum(rest, np.finfo(float).tiny) / (df - own_df)
    ratio = own / 2 / rest_variance
    below = stats.f.cdf(ratio, own_df, df - own_df)
    above = stats.f.sf(ratio, own_df, df - own_df)
    return np.asarray(2 * np.minimum(below, above))


def holm(p: Array) -> Array:
    """Return p-values adjusted by Holm's step-down rule, over the last axis."""
    count = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ordered = np.take_along_axis(p, order, axis=-1) * np.arange(count, 0, -1)
    stepped = np.minimum(np.maximum.accumulate(ordered, axis=-1), 1.0)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, stepped, axis=-1)
    return adjusted


def two_sided(t: Array, df: int) -> Array:
    """Return the p-value of no difference."""
    return np.asarray(2 * stats.t.sf(np.abs(t), df))


def not_equivalent(delta: Array, error: Array, df: int, margin: float) -> Array:
    """Return the p-value of a difference of at least the margin: the larger of two one-sided."""
    return np.asarray(stats.t.sf((margin - np.abs(delta)) / error, df))


# -- one pair --------------------------------------------------------------------------------------


def _judge_one(
    a: str, b: str, delta: float, error: float, df: int, count: int, margin: float
) -> Judged:
    # Equal to the last digit, in every seed: no test is needed, and none could be made.
    tiny = max(error, np.finfo(float).tiny)
    half = float(stats.t.ppf(1 - ALPHA / 2, df)) * error
    return Judged(
        a=a,
        b=b,
        margin=margin,
        num_seeds=count,
        delta=delta,
        error=error,
        df=df,
        low=delta - half,
        high=delta + half,
        wide_low=math.nan,
        wide_high=math.nan,
        p=float(two_sided(np.array(delta / tiny), df)),
        p_adjusted=math.nan,
        p_equivalent=float(not_equivalent(np.array(delta), np.array(tiny), df, margin)),
        verdict="open",
        seeds_needed=None,
    )


def _judge_family(pairs: Sequence[Judged]) -> list[Judged]:
    """Adjust for the family, and say the verdicts."""
    adjusted = holm(np.array([pair.p for pair in pairs]))
    equivalent = holm(np.array([pair.p_equivalent for pair in pairs]))

    judged = []
    for pair, p, p_equivalent in zip(pairs, adjusted, equivalent, strict=True):
        half = float(stats.t.ppf(1 - ALPHA / 2 / len(pairs), pair.df)) * pair.error
        verdict: Verdict = "open"
        # A difference that is real and smaller than the margin is none that matters.
        if p_equivalent < ALPHA:
            verdict = "equivalent"
        elif p < ALPHA:
            verdict = "better" if pair.delta > 0 else "worse"
        needed = _seeds_needed(pair, len(pairs)) if verdict == "open" else None
        judged.append(
            replace(
                pair,
                wide_low=pair.delta - half,
                wide_high=pair.delta + half,
                p_adjusted=float(p),
                p_equivalent=float(p_equivalent),
                verdict=verdict,
                seeds_needed=needed,
            )
        )
    return judged


def _seeds_needed(pair: Judged, family_size: int) -> int | None:
    """Return the smallest number of seeds that would settle the pair, as a difference or as none.

    At the level that Holm's rule asks of its first step, so it errs on the side of more.
    """
    counts = np.arange(pair.num_seeds + 1, MOST_SEEDS + 1)
    error = pair.error * np.sqrt(pair.num_seeds / counts)
    # Degrees of freedom grow with the seeds, as they did so far.
    df = np.round(pair.df / max(pair.num_seeds - 1, 1) * (counts - 1))

    critical = stats.t.ppf(1 - ALPHA / 2 / family_size, df)
    detected = stats.nct.sf(critical, df, abs(pair.delta) / error)

    # Both one-sided tests must reject.
    critical = stats.t.ppf(1 - ALPHA / family_size, df)
    above = stats.norm.cdf((pair.margin - pair.delta) / error - critical)
    below = stats.norm.cdf((pair.margin + pair.delta) / error - critical)

    # Far out in its tail the noncentral t gives no number.
    settled = np.flatnonzero(np.fmax(detected, above + below - 1) >= POWER)
    return int(counts[settled[0]]) if len(settled) else None
