"""The test of a table: a paired t test of each pair of rows, adjusted over a family of pairs.

    loss_sv = mean_v + block_s + e_sv        of seed s and row v

The runs of one seed share initial weights, tokens and their order, unless a row changes them. So
differences are taken at each seed and then averaged. The standard error of a difference comes from
its own pair alone.

A table of losses is a frame in nats per token, with a line for each seed, a column for each row,
and NaN for runs that are missing. docs/comparing.md says how often the test errs, and what it
finds.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Pair = Mapping[Any, Any]  # a line of `judge` as a mapping

ALPHA = 0.05
# Smaller differences, in nats, do not matter: the source calls 0.007 "≈" and 0.012 ">".
MARGIN = 0.01
POWER = 0.8
# Larger numbers of seeds are not reported.
MOST_SEEDS = 200
# Equally likely means of further seeds, over which the probability of a verdict is averaged.
_NUM_MEANS = 50
SEEDS_NEEDED = ["seeds_needed_low", "seeds_needed_high"]
# A verdict of fewer seeds is provisional. With normal noise the test finds a false difference in at
# most 5 % of families at any number of seeds. If some runs lag behind the others, it does so in up
# to 36 % with three seeds, 21 % with five and 9 % with eight (results/bench/error_and_power.csv).
FULL_SEEDS = 8
# If every row answers at least 1 - ROOM of the questions, none can be told apart (section 8 of
# paper/protocol.md).
ROOM = 0.01
# By the verdict on a pair (a, b): a is better, worse, equal within the margin, or nothing is shown.
SIGNS = {"better": ">", "worse": "<", "equivalent": "≈", "open": "?"}
# The verdict and the sign of (b, a), by those of (a, b); all others are the same.
_OPPOSITE = {"better": "worse", "worse": "better", ">": "<", "<": ">"}
# The columns of `judge`. A frame without a line has these types, too.
_COLUMNS = {
    "a": "str",
    "b": "str",
    "num_seeds": "int64",
    "delta": "float64",
    "error": "float64",
    "df": "int64",
    "family": "int64",
    "delta_ci_low": "float64",
    "delta_ci_high": "float64",
    "delta_wide_low": "float64",
    "delta_wide_high": "float64",
    "p": "float64",
    "p_adjusted": "float64",
    "p_equivalent": "float64",
    "verdict": "str",
    "sign": "str",
    "seeds_needed_low": "Int64",
    "seeds_needed_high": "Int64",
}


class PairedTest(NamedTuple):
    """The test of one pair (a, b), before its p-values are adjusted over the family.

    Attributes:
        num_seeds: the number of seeds that both rows have.
        delta: b's loss minus a's, averaged over these seeds, in nats.
        error: the standard error of `delta`.
        df: its degrees of freedom.
        family: the number of pairs that are judged together, as in the column of table.csv.
        delta_ci_low, delta_ci_high: the 95 % interval of this pair alone.
        delta_wide_low, delta_wide_high: an interval that holds for the whole family (Bonferroni).
        p: of no difference, two-sided.
        p_past_margin: of a difference of the margin or more (two one-sided tests).
    """

    num_seeds: int
    delta: float
    error: float
    df: int
    family: int
    delta_ci_low: float
    delta_ci_high: float
    delta_wide_low: float
    delta_wide_high: float
    p: float
    p_past_margin: float


def table_of(losses: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return the losses by seed and row; seeds ascend, so sums do not depend on reading order."""
    return pd.DataFrame(losses, dtype=float).sort_index()


def additive_fit(table_SV: Array) -> tuple[Array, int]:
    """Fit loss = seed + row by least squares to the losses that are not NaN.

    Returns:
        The fitted losses of all seeds and rows, and the rank of the design. It is S + V - 1 if
        shared seeds connect all rows, so that any two can be compared.
    """
    num_seeds, num_rows = table_SV.shape
    seed_N, row_N = np.nonzero(~np.isnan(table_SV))
    design = np.hstack([np.eye(num_seeds)[seed_N], np.eye(num_rows)[row_N]])
    effects, _, rank, _ = np.linalg.lstsq(design, table_SV[seed_N, row_N], rcond=None)
    return effects[:num_seeds, None] + effects[num_seeds:], int(rank)


def adjusted_means(table: pd.DataFrame) -> pd.Series:
    """Return the columns' means over all seeds, with fitted losses for seeds that a column lacks.

    Empty if shared seeds do not connect all columns.
    """
    trained = table.dropna(axis="columns", how="all").dropna(axis="index", how="all")
    fitted_SV, rank = additive_fit(trained.to_numpy())
    if rank < sum(trained.shape) - 1:
        return pd.Series(dtype=float)
    # Rounded, so that rounding errors of the fit do not separate equal rows.
    return pd.DataFrame(fitted_SV, columns=trained.columns).mean().round(9)


def summary(table: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Return num_seeds, loss_mean, loss_sd, delta and rank of each row, best first.

    Numbers may be missing, such as delta without the reference, or all ranks if shared seeds do not
    connect all rows. Equal rows share the better rank.
    """
    lines = pd.DataFrame(
        {
            "num_seeds": table.count(),
            "loss_mean": table.mean(),
            "loss_sd": table.std(),
            "delta": table.sub(table.get(reference, np.nan), axis="index").mean(),
            "rank": adjusted_means(table).rank(method="min").astype("Int64"),
        },
        index=table.columns,
    )
    return lines.sort_values(["rank", "loss_mean"])


def holm(p: Array) -> Array:
    """Return p-values adjusted by Holm's step-down rule."""
    # statsmodels has this as `multipletests`, but takes a second to import.
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.asarray(np.minimum(stepped, 1.0)[np.argsort(order)])


def judge(table: pd.DataFrame, pairs: Iterable[tuple[str, str]], plan: bool = True) -> pd.DataFrame:
    """Judge pairs together, as one family.

    Args:
        table: losses by seed and row.
        pairs: pairs (a, b) of rows. A pair is left out if the table lacks one of its rows, or if
            they share fewer than two seeds.
        plan: whether to compute how many seeds an open pair needs, which takes longer.
    Returns:
        A line for each pair, with its rows `a` and `b`, the attributes of `PairedTest`, and

        - p_adjusted, p_equivalent: `p` and `p_past_margin`, each adjusted by Holm's rule;
        - verdict: "better", "worse", "equivalent" or "open", said of a; sign: the same as a sign;
        - seeds_needed_low, seeds_needed_high: see `_seeds_needed`; missing without `plan`.
    """
    compared = []
    for a, b in pairs:
        if a in table and b in table:
            differences = (table[b] - table[a]).dropna().to_numpy()
            if len(differences) > 1:
                compared.append((a, b, differences))

    tests = [paired_test(differences, len(compared)) for _, _, differences in compared]
    p_adjusted = holm(np.array([test.p for test in tests]))
    p_equivalent = holm(np.array([test.p_past_margin for test in tests]))

    lines = []
    for place, ((a, b, _), test) in enumerate(zip(compared, tests, strict=True)):
        line = {"a": a, "b": b, **test._asdict()}
        line["p_adjusted"] = p_adjusted[place]
        line["p_equivalent"] = p_equivalent[place]
        line["verdict"] = _verdict(test.delta, p_adjusted[place], p_equivalent[place])
        line["sign"] = SIGNS[line["verdict"]]
        if plan and line["verdict"] == "open":
            line["seeds_needed_low"], line["seeds_needed_high"] = _seeds_needed(test)
        lines.append(line)
    return pd.DataFrame(lines, columns=[*_COLUMNS]).astype(_COLUMNS)


def paired_test(differences: Array, num_pairs: int = 1) -> PairedTest:
    """Return the test of the mean of some differences, as one of `num_pairs` pairs of a family.

    `scipy.stats.ttest_1samp` gives the same p and 95 % interval, but nan if all differences are
    equal.
    """
    count = len(differences)
    df = count - 1
    delta = differences.mean()
    error = differences.std(ddof=1) / math.sqrt(count)

    half = stats.t.ppf(1 - ALPHA / 2, df) * error
    wide_half = stats.t.ppf(1 - ALPHA / 2 / num_pairs, df) * error

    # If differences are equal to the last digit in every seed, the standard error is 0.
    divisor = np.maximum(error, np.finfo(float).tiny)
    return PairedTest(
        num_seeds=count,
        delta=float(delta),
        error=float(error),
        df=df,
        family=num_pairs,
        delta_ci_low=float(delta - half),
        delta_ci_high=float(delta + half),
        delta_wide_low=float(delta - wide_half),
        delta_wide_high=float(delta + wide_half),
        p=float(2 * stats.t.sf(np.abs(delta) / divisor, df)),
        # The larger of the two one-sided p-values.
        p_past_margin=float(stats.t.sf((MARGIN - np.abs(delta)) / divisor, df)),
    )


def exchanged(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return judged pairs (a, b) as pairs (b, a)."""
    return pairs.assign(
        a=pairs["b"],
        b=pairs["a"],
        delta=-pairs["delta"],
        delta_ci_low=-pairs["delta_ci_high"],
        delta_ci_high=-pairs["delta_ci_low"],
        delta_wide_low=-pairs["delta_wide_high"],
        delta_wide_high=-pairs["delta_wide_low"],
        verdict=pairs["verdict"].replace(_OPPOSITE),
        sign=pairs["sign"].replace(_OPPOSITE),
    )


def outcome(pair: Pair, published: str) -> str:
    """Return the outcome of a published relation on a judged pair.

    `published` is ">" (a is better) or "≈" (equal). The outcome is "confirmed", "confirmed, by less
    than the margin", "contradicted" or "open".
    """
    if pair["sign"] == published:
        return "confirmed"
    if published == SIGNS["equivalent"]:
        is_outside = pair["delta_wide_low"] > MARGIN or pair["delta_wide_high"] < -MARGIN
        return "contradicted" if is_outside else "open"
    is_equivalent = pair["verdict"] == "equivalent"
    if is_equivalent and pair["p_adjusted"] < ALPHA and pair["delta"] > 0:
        return "confirmed, by less than the margin"
    return "contradicted" if is_equivalent or pair["verdict"] == "worse" else "open"


def _verdict(delta: float, p_adjusted: float, p_equivalent: float) -> str:
    """Return the verdict on the first row of a pair."""
    # A real difference below the margin does not matter.
    if p_equivalent < ALPHA:
        return "equivalent"
    if p_adjusted < ALPHA:
        return "better" if delta > 0 else "worse"
    return "open"


def _seeds_needed(test: PairedTest) -> tuple[int | None, int | None]:
    """Return how many seeds would settle an open pair: the fewest, and the most.

    The seeds at hand stay, and are counted in both numbers. A number of seeds settles the pair if
    it, and every larger one, gives a verdict with the probability `POWER`. This depends on the true
    difference, which may lie anywhere in the 95 % interval: `fewest` is for the best place in it,
    and only `most` is a number to plan with. The level is that of Holm's first step, so numbers
    err on the high side.

    Returns:
        Two numbers of seeds; None in place of one that is larger than `MOST_SEEDS`.
    """
    # A large difference and none at all need the fewest seeds, half the margin about the most.
    low = test.delta_ci_low
    high = test.delta_ci_high
    places = np.array([low, -MARGIN / 2, 0, MARGIN / 2, high])

    needed = []
    for true_delta in np.unique(np.clip(places, low, high)):
        power_M = power_of_further_seeds(test, true_delta)
        # Count NaN as too little power.
        too_few = np.flatnonzero(~(power_M >= POWER))
        # The first entry is one further seed.
        num_further = int(too_few[-1]) + 2 if len(too_few) else 1
        needed.append(test.num_seeds + num_further)

    fewest, most = min(needed), max(needed)
    return fewest if fewest <= MOST_SEEDS else None, most if most <= MOST_SEEDS else None


def power_of_further_seeds(test: PairedTest, true_delta: float) -> Array:
    """Return the probability that a pair is settled by the seeds at hand and some further ones.

    The recorded differences stay. Further ones are normal; their SD is as uncertain as the recorded
    ones leave it (a scaled inverse chi-squared distribution), so their mean has a t distribution
    around the true difference, and their variance, given their mean, has an F distribution.
    statsmodels' `TTestPower` would draw all seeds anew, and takes the SD as known.

    Shapes: M numbers of further seeds, Q equally likely means of theirs.

    Args:
        test: the test of the recorded differences, whose SD is not 0.
        true_delta: the true difference, in nats.
    Returns:
        A probability for 1, 2, ... further seeds, until there are `MOST_SEEDS` together.
    """
    present = test.num_seeds
    further_M1 = np.arange(1, MOST_SEEDS - present + 1)[:, None]
    total_M1 = present + further_M1

    # All differences are in units of the recorded SD.
    sd = test.error * math.sqrt(present)
    recorded = test.delta / sd
    margin = MARGIN / sd

    # The mean of the further differences, as quantiles, and the mean of all.
    deviation_Q = stats.t.ppf((np.arange(_NUM_MEANS) + 0.5) / _NUM_MEANS, present - 1)
    mean_MQ = true_delta / sd + deviation_Q / np.sqrt(further_M1)
    total_mean_MQ = (present * recorded + further_M1 * mean_MQ) / total_M1

    # The largest standard error at which this mean gives a verdict, by either test.
    level = ALPHA / test.family
    detecting_MQ = np.abs(total_mean_MQ) / stats.t.ppf(1 - level / 2, total_M1 - 1)
    excluding_MQ = (margin - np.abs(total_mean_MQ)) / stats.t.ppf(1 - level, total_M1 - 1)
    error_MQ = np.maximum(detecting_MQ, excluding_MQ)

    # The sum of squares that it leaves to the further differences around their own mean.
    between_MQ = present * further_M1 / total_M1 * (mean_MQ - recorded) ** 2
    within_MQ = error_MQ**2 * total_M1 * (total_M1 - 1) - (present - 1) - between_MQ

    # A single further difference has none.
    settled_MQ = (within_MQ >= 0).astype(float)
    variance_Q = (present - 1 + deviation_Q**2) / present
    df_M1 = further_M1[1:] - 1
    settled_MQ[1:] = stats.f.cdf(within_MQ[1:] / df_M1 / variance_Q, df_M1, present)
    return np.asarray(settled_MQ.mean(axis=1))
