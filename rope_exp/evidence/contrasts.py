"""What losses say: means, deviations, differences within a seed, ranks and rank correlation.

Blocks are seeds: within one, all rows share what their factors leave equal (initial weights,
tokens and their order), so a row is held against the reference seed by seed and the differences
are averaged, never the means subtracted. Plain float64, seeds in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau

# Validation losses of a row's finished runs, in nats per token, by seed.
Losses = Mapping[int, float]


@dataclass(frozen=True)
class Contrast:
    """One row's losses, and how they differ from the reference's; None where there is no number."""

    num_seeds: int
    loss_mean: float | None
    loss_sd: float | None
    delta: float | None
    delta_sd: float | None
    rank: int | None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return float(np.mean(values)) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None of fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired_differences(losses: Losses, reference: Losses) -> dict[int, float]:
    """Return loss minus the reference's for each seed that both have, by ascending seed."""
    both = sorted(losses.keys() & reference.keys())
    return {seed: losses[seed] - reference[seed] for seed in both}


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Return 1 for the lowest; equals share the better rank, and the next rank is left out."""
    ordered = sorted(values.values())
    return {label: ordered.index(value) + 1 for label, value in values.items()}


def kendall_tau(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[float | None, int]:
    """Return Kendall's tau-b over the labels that both have, and their number.

    tau-b = (C - D) / sqrt((n0 - n1)(n0 - n2)), where C and D count concordant and discordant
    pairs, n0 all pairs, n1 and n2 the pairs tied in ours and in theirs. None where that is 0/0:
    fewer than two labels, or all equal.
    """
    both = sorted(ours.keys() & theirs.keys())
    x = [ours[label] for label in both]
    y = [theirs[label] for label in both]

    if len(set(x)) < 2 or len(set(y)) < 2:
        return None, len(both)
    return float(kendalltau(x, y, variant="b").statistic), len(both)


def shared_means(losses: Mapping[str, Losses]) -> dict[str, float]:
    """Return each row's mean over the seeds that all rows with a loss have finished.

    Only these can be read as an order: a mean over other seeds differs by the seeds too. Empty
    where no seed is shared.
    """
    having = {label: by_seed for label, by_seed in losses.items() if by_seed}
    seeds = sorted(set().union(*having.values()))
    shared = [seed for seed in seeds if all(seed in by_seed for by_seed in having.values())]

    if not shared:
        return {}
    return {label: float(np.mean([row[seed] for seed in shared])) for label, row in having.items()}


def compare(losses: Mapping[str, Losses], reference: str) -> dict[str, Contrast]:
    """Hold every row against the reference.

    Args:
        losses: by the rows' labels, in any order; a row without a finished run has none.
        reference: a label; without it, or without a finished run of it, there are no deltas.
    Returns:
        A contrast for each label, best first; rows without a number last, by label.
    """
    base = losses.get(reference, {})
    rank = ranks(shared_means(losses))

    contrasts = {}
    for label, by_seed in losses.items():
        # By ascending seed, so that sums do not depend on the order of reading.
        values = [by_seed[seed] for seed in sorted(by_seed)]
        differences = list(paired_differences(by_seed, base).values())
        contrasts[label] = Contrast(
            num_seeds=len(values),
            loss_mean=mean(values),
            loss_sd=deviation(values),
            delta=mean(differences),
            delta_sd=deviation(differences),
            rank=rank.get(label),
        )

    def place(label: str) -> tuple[bool, int, float, str]:
        row = contrasts[label]
        return row.loss_mean is None, row.rank or 0, row.loss_mean or 0.0, label

    return {label: contrasts[label] for label in sorted(contrasts, key=place)}
