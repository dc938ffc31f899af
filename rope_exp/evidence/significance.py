"""The significance test of docs/protocol.md: families of pairs, and a verdict on each pair.

Losses form a two-way layout, seed x variant, with holes where a variant has fewer seeds:

    loss_sv = mean_v + block_s + e_sv.

A contrast of two variants is the mean of their differences within the seeds that both have. Its
standard error is s sqrt(2/n), with s^2 the residual variance of the layout, pooled over variants
(`pooled`), or follows from the standard deviation of these differences alone (`paired`), as
`layout.measure` decides. Plain float64.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from rope_exp.evidence.contrasts import Losses
from rope_exp.evidence.layout import ALPHA, Noise, holm

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
