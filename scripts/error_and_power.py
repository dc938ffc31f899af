"""Simulate the test of a table: how often it errs, and which differences it finds.

    python scripts/error_and_power.py

It draws experiments of nine variants whose true differences are known, and judges them by the rule
of `rope_exp.stats.judge`. It writes results/bench/error_and_power.csv and prints the three tables
of docs/comparing.md. It takes about a minute of one core.

Shapes: D drawn experiments, S seeds, V variants, P pairs of a family.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from rope_exp.machine import ROOT
from rope_exp.stats import ALPHA, MARGIN, Array

CSV = ROOT / "results" / "bench" / "error_and_power.csv"
DRAWS = 20_000
SEEDS = (3, 5, 8, 12)

# Variant 0 is the reference. Variant 1 may differ from it; the other seven never do.
NUM_VARIANTS = 9
FAMILIES: Mapping[str, list[tuple[int, int]]] = {
    "one pair": [(0, 1)],
    "8 with a reference": [(0, variant) for variant in range(1, NUM_VARIANTS)],
    "all 36 pairs": list(itertools.combinations(range(NUM_VARIANTS), 2)),
}

# Standard deviations of a pair's differences over seeds, in nats, and true differences.
PAIRED_SDS = (0.012, 0.02)
DIFFERENCES = (0.0, 0.01, 0.02, 0.04)

Shape = tuple[int, int, int]


def equal(random: Generator, shape_DSV: Shape, sd: float) -> Array:
    """Draw losses of equally noisy variants.

    Args:
        random: the generator.
        shape_DSV: of the losses.
        sd: the standard deviation of a loss, in nats.
    Returns:
        Losses with the true mean 0.
    """
    return random.normal(scale=sd, size=shape_DSV)


def twice(random: Generator, shape_DSV: Shape, sd: float) -> Array:
    """Draw losses of nine variants, of which the first three are twice as noisy.

    Args:
        random: the generator.
        shape_DSV: of the losses.
        sd: the standard deviation of a loss of the other six, in nats.
    Returns:
        Losses with the true mean 0.
    """
    scale_V = np.array([2.0] * 3 + [1.0] * 6)
    return scale_V * random.normal(scale=sd, size=shape_DSV)


def spread(random: Generator, shape_DSV: Shape, sd: float) -> Array:
    """Draw losses whose standard deviations fall from twice `sd` to half of it.

    Args:
        random: the generator.
        shape_DSV: of the losses.
        sd: the standard deviation of a loss in the middle, in nats.
    Returns:
        Losses with the true mean 0.
    """
    scale_V = np.geomspace(2.0, 0.5, shape_DSV[-1])
    return scale_V * random.normal(scale=sd, size=shape_DSV)


def copying(random: Generator, shape_DSV: Shape, sd: float) -> Array:
    """Draw losses of which a third are 0.08 lower, as those of runs that learn to copy.

    Args:
        random: the generator.
        shape_DSV: of the losses.
        sd: the standard deviation of the other losses, in nats.
    Returns:
        Losses of one true mean.
    """
    copies_DSV = random.random(shape_DSV) < 1 / 3
    return random.normal(scale=sd, size=shape_DSV) - 0.08 * copies_DSV


def lagging(random: Generator, shape_DSV: Shape, sd: float) -> Array:
    """Draw losses of which three in ten of the first variant are 30 SDs higher.

    All of its losses are lowered by 9 SDs, so its true mean is that of the others.

    Args:
        random: the generator.
        shape_DSV: of the losses.
        sd: the standard deviation of a loss that is not raised, in nats.
    Returns:
        Losses with the true mean 0.
    """
    loss_DSV = random.normal(scale=sd, size=shape_DSV)
    lags_DS = random.random(shape_DSV[:-1]) < 0.3
    loss_DSV[..., 0] += 30 * sd * (lags_DS - 0.3)
    return loss_DSV


NOISES: Mapping[str, Callable[[Generator, Shape, float], Array]] = {
    "equal": equal,
    "three variants twice as noisy, the reference among them": twice,
    "spread over a factor of four, the reference noisiest": spread,
    "a third of runs end 0.08 nats lower": copying,
    "three in ten runs of the reference end 30 SDs higher": lagging,
}


# Noises and paired SDs for which power is simulated.
POWER = (
    ("equal", PAIRED_SDS[0]),
    ("equal", PAIRED_SDS[1]),
    ("a third of runs end 0.08 nats lower", PAIRED_SDS[0]),
)


class Judged(NamedTuple):
    """Columns of `rope_exp.stats.judge`, for many experiments at once."""

    delta_DP: Array
    p_adjusted_DP: Array
    p_equivalent_DP: Array


def judge_many(loss_DSV: Array, family: list[tuple[int, int]]) -> Judged:
    """Return each experiment's judged pairs of a family, as `rope_exp.stats.judge` does for one.

    A test compares the two on drawn tables.
    """
    a_P, b_P = np.array(family).T
    difference_DSP = loss_DSV[:, :, b_P] - loss_DSV[:, :, a_P]
    num_seeds = difference_DSP.shape[1]

    delta_DP = difference_DSP.mean(axis=1)
    error_DP = difference_DSP.std(axis=1, ddof=1) / math.sqrt(num_seeds)
    p_DP = 2 * stats.t.sf(np.abs(delta_DP) / error_DP, num_seeds - 1)
    past_margin_DP = stats.t.sf((MARGIN - np.abs(delta_DP)) / error_DP, num_seeds - 1)
    return Judged(delta_DP, holm_many(p_DP), holm_many(past_margin_DP))


def holm_many(p_DP: Array) -> Array:
    """Return p-values adjusted by Holm's step-down rule within each experiment."""
    order_DP = np.argsort(p_DP, axis=1)
    factors_P = np.arange(p_DP.shape[1], 0, -1)
    stepped_DP = np.maximum.accumulate(np.take_along_axis(p_DP, order_DP, 1) * factors_P, axis=1)

    adjusted_DP = np.empty_like(p_DP)
    np.put_along_axis(adjusted_DP, order_DP, np.minimum(stepped_DP, 1.0), 1)
    return adjusted_DP


def is_better(judged: Judged) -> NDArray[np.bool_]:
    """Return whether the verdict on the first variant of each pair is "better"."""
    is_different_DP = judged.p_adjusted_DP < ALPHA
    is_equivalent_DP = judged.p_equivalent_DP < ALPHA
    return is_different_DP & ~is_equivalent_DP & (judged.delta_DP > 0)


def settings() -> Iterator[tuple[str, float, float]]:
    """Yield noise, SD of a pair's differences, and true difference of variants 1 and 0."""
    for noise in NOISES:
        yield noise, PAIRED_SDS[0], 0.0
    yield "equal", PAIRED_SDS[1], 0.0
    for noise, paired_sd in POWER:
        for difference in DIFFERENCES[1:]:
            yield noise, paired_sd, difference


def simulate(
    noise: str, paired_sd: float, difference: float, num_seeds: int, num_draws: int = DRAWS
) -> list[dict[str, str | float]]:
    """Return a line for each family, of the same drawn experiments.

    Args:
        noise: a key of `NOISES`.
        paired_sd: the standard deviation of the difference of two runs of one seed, in nats, where
            noise is equal and none of them copies or lags.
        difference: variant 1's true loss minus that of the reference, in nats.
        num_seeds: of each variant.
        num_draws: the number of experiments.
    Returns:
        The arguments and, as shares of experiments: `false_difference`, some pair that is truly
        equal has an adjusted p-value below 0.05; `found`, the verdict that the reference is better
        than variant 1; `equivalent`, the verdict that these two are equivalent.
    """
    random = np.random.default_rng(0)
    loss_DSV = NOISES[noise](random, (num_draws, num_seeds, NUM_VARIANTS), paired_sd / 2**0.5)
    loss_DSV[..., 1] += difference

    lines: list[dict[str, str | float]] = []
    for name, family in FAMILIES.items():
        judged = judge_many(loss_DSV, family)
        is_equal_P = np.array([difference == 0 or 1 not in pair for pair in family])
        is_false_DP = (judged.p_adjusted_DP < ALPHA) & is_equal_P

        lines.append(
            {
                "noise": noise,
                "paired_sd": paired_sd,
                "difference": difference,
                "seeds": num_seeds,
                "family": name,
                "false_difference": is_false_DP.any(axis=1).mean(),
                "found": is_better(judged)[:, 0].mean(),
                "equivalent": (judged.p_equivalent_DP[:, 0] < ALPHA).mean(),
            }
        )
    return lines


def markdown(frame: pd.DataFrame) -> list[str]:
    """Return the tables of docs/comparing.md: errors, differences found, and equivalence shown."""
    return [_errors(frame), _found(frame), _equivalent(frame)]


def _errors(frame: pd.DataFrame) -> str:
    """Return the table of false differences, where all variants are equal."""
    is_shown = (frame["paired_sd"] == PAIRED_SDS[0]) & (frame["difference"] == 0)
    table = [_head("noise")]
    for noise in NOISES:
        lines = frame[is_shown & (frame["noise"] == noise)]
        table.append(
            _line([noise], lines, "false_difference", ["8 with a reference", "all 36 pairs"])
        )
    return "\n".join(table)


def _found(frame: pd.DataFrame) -> str:
    """Return the table of true differences that are found."""
    moved = frame[frame["difference"] > 0]
    table = [_head("noise", "SD", "true difference")]
    for noise, paired_sd in POWER:
        for difference in DIFFERENCES[1:]:
            lines = moved[
                (moved["noise"] == noise)
                & (moved["paired_sd"] == paired_sd)
                & (moved["difference"] == difference)
            ]
            labels = [noise, f"{paired_sd:g}", f"{difference:g}"]
            table.append(_line(labels, lines, "found", ["one pair", "8 with a reference"]))
    return "\n".join(table)


def _equivalent(frame: pd.DataFrame) -> str:
    """Return the table of equal variants that are shown to be equivalent, with equal noise."""
    same = frame[(frame["noise"] == "equal") & (frame["difference"] == 0)]
    table = [_head("SD")]
    for paired_sd in PAIRED_SDS:
        lines = same[same["paired_sd"] == paired_sd]
        families = ["one pair", "8 with a reference"]
        table.append(_line([f"{paired_sd:g}"], lines, "equivalent", families))
    return "\n".join(table)


def _head(*labels: str) -> str:
    """Return the head of a table with a column for each number of seeds."""
    cells = [*labels, *(f"{num_seeds} seeds" for num_seeds in SEEDS)]
    alignment = ["---"] * len(labels) + ["---:"] * len(SEEDS)
    return f"| {' | '.join(cells)} |\n|{'|'.join(alignment)}|"


def _line(labels: list[str], lines: pd.DataFrame, column: str, families: list[str]) -> str:
    """Return a line of a table, whose cells have a percentage for each family."""
    share = lines.set_index(["seeds", "family"])[column]
    cells = [
        " / ".join(_percent(share.loc[num_seeds, family]) for family in families)
        for num_seeds in SEEDS
    ]
    return f"| {' | '.join([*labels, *cells])} |"


def _percent(share: float) -> str:
    """Return a percentage without its sign, with one decimal below 10."""
    return f"{100 * share:.1f}" if share < 0.0995 else f"{100 * share:.0f}"


def main() -> None:
    """Write the CSV, and print the tables of docs/comparing.md."""
    lines = []
    for setting in settings():
        for num_seeds in SEEDS:
            lines += simulate(*setting, num_seeds)
    pd.DataFrame(lines).to_csv(CSV, index=False, float_format="%.4g")
    print("\n\n".join(markdown(pd.read_csv(CSV))))


if __name__ == "__main__":
    main()
