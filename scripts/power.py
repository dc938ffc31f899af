"""Choose the test of docs/protocol.md: simulate every candidate under the pilot's noise.

Losses are drawn from the layout that `significance` assumes, and from layouts that break its
assumptions (variants of unequal noise, heavy tails). The true means include equal pairs, pairs a
margin apart and pairs further apart. Every candidate judges the same draws.

Shapes: D draws, S seeds, V variants, P pairs, F sign flips.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from rope_exp.evidence.contrasts import Array
from rope_exp.evidence.layout import ALPHA, deviating, holm
from rope_exp.evidence.significance import MARGIN, not_equivalent, two_sided

NUM_VARIANTS = 9
NUM_SEEDS = (3, 5, 8, 12)
# If there are more sign flips than this, a sample of them is drawn.
MOST_FLIPS = 1024

# True means, in margins. Spread: three are equal, one each lies a half, one, two and four margins
# away, and two far away are equal again.
TRUTHS: Mapping[str, Array] = {
    "equal": np.zeros(NUM_VARIANTS),
    "spread": np.array([0, 0, 0, 0.5, 1, 2, 4, 8, 8]),
}
# For the noise `late`: the share of late runs, and their lag in standard deviations.
LATE_SHARE = 0.3
LATE_BY = 30.0
GAPS = (0.5, 1.0, 2.0, 4.0)  # margins


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw equal, normal noise of standard deviation 1, as the pooled test assumes."""
    return random.normal(size=shape)


def unequal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw normal noise with standard deviations in ratios of 0.5 to 2, of mean square 1."""
    deviations = np.geomspace(0.5, 2.0, shape[-1])
    scale_V: Array = deviations / np.sqrt(np.mean(deviations**2))
    return scale_V * random.normal(size=shape)


def heavy(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw Student's t of 4 degrees, of standard deviation 1: now and then a run goes astray."""
    drawn: Array = random.standard_t(4, size=shape)
    return drawn / math.sqrt(2)


def late(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw equal, normal noise, and put three in ten runs of the first variant far behind.

    Those have not yet made a jump in learning. The mean is 0, and the other variants' standard
    deviation 1.
    """
    noise: Array = random.normal(size=shape)
    noise[..., 0] += LATE_BY * ((random.random(shape[:-1]) < LATE_SHARE) - LATE_SHARE)
    return noise


NOISES: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": normal,
    "unequal": unequal,
    "heavy": heavy,
    "late": late,
}


def simulate(deviation: float, num_draws: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Return a row for each truth, noise, number of seeds and test.

    Args:
        deviation: the standard deviation of `e` in the layout, in nats: of a run's loss within a
            seed. A difference of two runs has sqrt(2) times that.
    Returns:
        family_error: how often any pair of equal variants is called different; power_X: how often
        a pair X margins apart is; false_equal: how often any pair of a margin or more is called
        equivalent; equal_power: how often an equal pair is; wrong_verdict: how often any pair has
        one, of either kind or with the wrong sign; coverage: of a contrast's 95 % interval;
        family_coverage: of all 36 wide intervals at once.
    """
    random = np.random.default_rng(seed)
    rows = []
    for truth, (noise, draw), count in itertools.product(TRUTHS, NOISES.items(), NUM_SEEDS):
        e_DSV = deviation * draw(random, (num_draws, count, NUM_VARIANTS))
        means_V = TRUTHS[truth] * MARGIN
        for test, judged in _candidates(e_DSV + means_V).items():
            row = {"truth": truth, "noise": noise, "seeds": count, "test": test}
            rows.append(row | _rates(judged, means_V))
    return pd.DataFrame(rows)


_NOTHING: Array = np.full((1, 1), np.nan)


class _Judged(NamedTuple):
    """The results of a test, [D, P] each."""

    delta: Array  # estimated, which all tests share
    p: Array  # adjusted
    equal: Array = _NOTHING  # adjusted, of a difference past the margin
    half: Array = _NOTHING  # of a contrast's own interval
    wide: Array = _NOTHING  # of the family's intervals


def _candidates(loss_DSV: Array) -> dict[str, _Judged]:
    """Return each test's results on the same draws."""
    a, b = pairs()
    d_DSP = loss_DSV[:, :, b] - loss_DSV[:, :, a]
    delta_DP = d_DSP.mean(axis=1)
    num_seeds = d_DSP.shape[1]

    # Paired: each contrast uses only its own standard deviation.
    paired_DP = d_DSP.std(axis=1, ddof=1) / np.sqrt(num_seeds)
    paired = _t_tests(delta_DP, paired_DP, num_seeds - 1)

    # Pooled: the residual of the layout, one number for all contrasts of a draw.
    residual_DSV = loss_DSV - loss_DSV.mean(1, keepdims=True) - loss_DSV.mean(2, keepdims=True)
    residual_DSV += loss_DSV.mean((1, 2), keepdims=True)
    df = (num_seeds - 1) * (NUM_VARIANTS - 1)
    variance_D = (residual_DSV**2).sum((1, 2)) / df
    pooled_DP = np.sqrt(2 * variance_D / num_seeds)[:, None] * np.ones_like(delta_DP)
    pooled = _t_tests(delta_DP, pooled_DP, df)

    # The rule that looks first: pooled, unless a test finds unequal noise of variants.
    deviating_DP = deviating(d_DSP.var(axis=1, ddof=1), num_seeds - 1, variance_D[:, None], df)
    is_unequal_D1 = holm(deviating_DP).min(axis=1, keepdims=True) < ALPHA
    looked = _Judged(*(np.where(is_unequal_D1, *said) for said in zip(paired, pooled, strict=True)))

    # Pooled, by the distribution of the largest of all differences.
    critical = stats.studentized_range.ppf(1 - ALPHA, NUM_VARIANTS, df) / np.sqrt(2)
    beyond_DP = np.abs(delta_DP) / pooled_DP > critical
    tukey_DP = np.where(beyond_DP, 0.0, 1.0)

    flips_FS = _flips(num_seeds)
    flipped = [_flip_tests(d_SP, flips_FS) for d_SP in d_DSP]
    return {
        "paired t, Holm": paired,
        "pooled t, Holm": pooled,
        "pooled if equal, Holm": looked,
        "pooled, Tukey": _Judged(delta_DP, tukey_DP, wide=critical * pooled_DP),
        "sign flip, Holm": _Judged(delta_DP, np.array([p_P for p_P, _ in flipped])),
        "step-down maximum": _Judged(delta_DP, np.array([p_P for _, p_P in flipped])),
    }


def pairs() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first and the second variant of every pair."""
    return np.triu_indices(NUM_VARIANTS, 1)


def _t_tests(delta_DP: Array, error_DP: Array, df: int) -> _Judged:
    """Return the results of `significance.judge` for these standard errors."""
    num_pairs = delta_DP.shape[1]
    p_DP = holm(two_sided(delta_DP / error_DP, df))
    equal_DP = holm(not_equivalent(delta_DP, error_DP, df, MARGIN))
    half_DP = stats.t.ppf(1 - ALPHA / 2, df) * error_DP
    wide_DP = stats.t.ppf(1 - ALPHA / 2 / num_pairs, df) * error_DP
    return _Judged(delta_DP, p_DP, equal_DP, half_DP, wide_DP)


def _flips(num_seeds: int) -> Array:
    """Return every choice of one sign per seed, the data's own first, or a sample of them."""
    if 2**num_seeds <= MOST_FLIPS:
        return np.array(list(itertools.product([1.0, -1.0], repeat=num_seeds)))
    drawn = np.random.default_rng(0).choice([1.0, -1.0], size=(MOST_FLIPS, num_seeds))
    drawn[0] = 1.0
    return drawn


def _flip_tests(d_SP: Array, flips_FS: Array) -> tuple[Array, Array]:
    """Return adjusted p-values of one draw: Holm over pairs, and Westfall and Young's step-down.

    Both flip the signs of whole seeds. The statistic is Student's t; no flip changes its sum of
    squares.
    """
    num_seeds, num_pairs = d_SP.shape
    mean_FP = flips_FS @ d_SP / num_seeds
    spread_FP = (d_SP**2).sum(axis=0) / num_seeds - mean_FP**2
    t_FP = np.abs(mean_FP) / np.sqrt(np.maximum(spread_FP, 1e-300))

    # The tolerance keeps rounding from putting an equal statistic below the data's own.
    at_least_FP = t_FP >= t_FP[0] * (1 - 1e-9)
    by_holm_P = holm(at_least_FP.mean(axis=0))

    # From the smallest statistic up, take the maximum over those that are not yet rejected.
    order = np.argsort(t_FP[0])
    largest_FP = np.maximum.accumulate(t_FP[:, order], axis=1)
    p_P = (largest_FP >= t_FP[0, order] * (1 - 1e-9)).mean(axis=0)
    stepped_P = np.maximum.accumulate(p_P[::-1])[::-1]
    by_maximum_P = np.empty(num_pairs)
    by_maximum_P[order] = stepped_P
    return by_holm_P, by_maximum_P


def _rates(judged: _Judged, means_V: Array) -> dict[str, float]:
    """Return a test's error rates, power and coverage."""
    a, b = pairs()
    true_P = means_V[b] - means_V[a]
    gap_P = np.abs(true_P) / MARGIN
    same_P = gap_P == 0
    past_P = gap_P > 1 - 1e-9
    found_DP = judged.p < ALPHA
    off_DP = np.abs(judged.delta - true_P)

    rates = {"family_error": found_DP[:, same_P].any(axis=1).mean()}
    for gap in GAPS:
        apart_P = np.isclose(gap_P, gap)
        if apart_P.any():
            rates[f"power_{gap:g}"] = found_DP[:, apart_P].mean()

    if judged.equal is not _NOTHING:
        # As in the report: equivalence first, else a difference, which has a sign.
        called_equal_DP = judged.equal < ALPHA
        called_DP = found_DP & ~called_equal_DP
        wrong_DP = called_DP & (np.sign(judged.delta) != np.sign(true_P))
        wrong_DP |= called_equal_DP & past_P
        rates["wrong_verdict"] = wrong_DP.any(axis=1).mean()
        rates["equal_power"] = called_equal_DP[:, same_P].mean()
        if past_P.any():
            rates["false_equal"] = called_equal_DP[:, past_P].any(axis=1).mean()
    if judged.half is not _NOTHING:
        rates["coverage"] = (off_DP <= judged.half).mean()
    if judged.wide is not _NOTHING:
        rates["family_coverage"] = (off_DP <= judged.wide).all(axis=1).mean()
    return {key: float(rate) for key, rate in rates.items()}


def main() -> None:
    """Write <out>/power.csv: error rates, power and coverage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--deviations",
        type=float,
        nargs="+",
        required=True,
        help="SDs of a run's loss within a seed, in nats; each is simulated",
    )
    parser.add_argument("--draws", type=int, default=2000, help="draws per layout (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/noise"), help="(%(default)s)")
    asked = parser.parse_args()

    asked.out.mkdir(parents=True, exist_ok=True)
    tables = {deviation: simulate(deviation, asked.draws) for deviation in asked.deviations}
    table = pd.concat(tables, names=["deviation"]).reset_index(level=0)
    table.to_csv(asked.out / "power.csv", index=False, float_format="%.4f")
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
