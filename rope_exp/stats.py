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
from typing import Any

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


def table_of(losses: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Return the losses by seed and row; seeds ascend, so sums do not depend on reading order."""
    return pd.DataFrame(losses, dtype=float).sort_index()


def additive_fit(table_SV: Array) -> tuple[Array, int]:
    """Fit loss = seed + row by least squares; return all fitted losses and the design's rank.

    The rank is S + V - 1 if shared seeds connect all rows, so that any two can be compared.
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
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.asarray(np.minimum(stepped, 1.0)[np.argsort(order)])


def judge(
    table: pd.DataFrame, family: Iterable[tuple[str, str]], plan: bool = True
) -> pd.DataFrame:
    """Judge the pairs of a family together.

    Args:
        table: losses by seed and row.
        family: pairs (a, b) of rows. A pair is left out if the table lacks one of its rows, or if
            they share fewer than two seeds.
        plan: whether to compute how many seeds an open pair needs, which takes longer.
    Returns:
        A line for each pair, with the columns

        - a, b: the rows; num_seeds: the number of seeds that both have;
        - delta: b's loss minus a's, in nats; error, df: its standard error and its degrees of
          freedom; family: the number of pairs that are judged;
        - delta_ci_low, delta_ci_high: the 95 % interval of this pair alone; delta_wide_low,
          delta_wide_high: an interval that holds for the whole family (Bonferroni);
        - p: of no difference, two-sided, of this pair alone; p_adjusted: the same by Holm's rule;
        - p_equivalent: of a difference of the margin or more (two one-sided tests), by Holm's rule;
        - verdict: "better", "worse", "equivalent" or "open", said of a; sign: the same as a sign;
        - seeds_needed_low, seeds_needed_high: see `_seeds_needed`; missing without `plan`.
    """
    lines = []
    for a, b in (pair for pair in family if {*pair} <= {*table}):
        differences = (table[b] - table[a]).dropna().to_numpy()
        if (count := len(differences)) < 2:
            continue
        error = differences.std(ddof=1) / math.sqrt(count)
        lines.append((a, b, count, float(differences.mean()), error, count - 1))

    types = {"a": str, "b": str, "num_seeds": int, "delta": float, "error": float, "df": int}
    frame = pd.DataFrame(lines, columns=[*types]).astype(types).assign(family=len(lines))
    delta, error_P, df_P = (frame[key].to_numpy() for key in ("delta", "error", "df"))
    # If differences are equal to the last digit in every seed, the standard error is 0.
    tiny = np.maximum(error_P, np.finfo(float).tiny)
    for name, size in (("ci", 1), ("wide", frame["family"])):
        half = stats.t.ppf(1 - ALPHA / 2 / size, df_P) * error_P
        frame[f"delta_{name}_low"] = delta - half
        frame[f"delta_{name}_high"] = delta + half
    frame["p"] = 2 * stats.t.sf(np.abs(delta) / tiny, df_P)
    adjusted = frame["p_adjusted"] = holm(frame["p"].to_numpy())
    # Of a difference of at least the margin: the larger of both one-sided p-values.
    past_margin = np.asarray(stats.t.sf((MARGIN - np.abs(delta)) / tiny, df_P))
    equivalent = frame["p_equivalent"] = holm(past_margin)
    # A real difference below the margin does not matter.
    cases = [equivalent < ALPHA, ~(adjusted < ALPHA), delta > 0]
    frame["verdict"] = np.select(cases, ["equivalent", "open", "better"], "worse")
    frame["sign"] = frame["verdict"].map(SIGNS)

    needed = [_seeds_needed(pair) for pair in frame.to_dict("records") if plan]
    return frame.join(pd.DataFrame(needed, columns=SEEDS_NEEDED, dtype="Int64"))


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


def _seeds_needed(pair: Pair) -> list[int | None]:
    """Return the fewest and the most seeds that would settle an open pair with the power `POWER`.

    The true difference may lie anywhere in the 95 % interval: a large one and none at all need the
    fewest seeds, half the margin about the most. The level is that of Holm's first step, so the
    numbers err on the high side. None: the pair is settled, or needs more than `MOST_SEEDS`.
    """
    if pair["verdict"] != "open":
        return [None, None]
    low, high, half = pair["delta_ci_low"], pair["delta_ci_high"], MARGIN / 2
    delta_D1 = np.clip([low, -half, 0, half, high], low, high)[:, None]
    counts = np.arange(pair["num_seeds"] + 1, MOST_SEEDS + 1)
    error = pair["error"] * np.sqrt(pair["num_seeds"] / counts)
    df = counts - 1

    detects = stats.t.ppf(1 - ALPHA / 2 / pair["family"], df) * error
    excludes = MARGIN - stats.t.ppf(1 - ALPHA / pair["family"], df) * error

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
    needed_D = [int(counts[row.argmax()]) if row.any() else MOST_SEEDS + 1 for row in settled_DN]
    return [count if count <= MOST_SEEDS else None for count in (min(needed_D), max(needed_D))]
