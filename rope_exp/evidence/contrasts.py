"""What the losses of a group say: means, deviations, differences within a seed, ranks and rank correlation.

Blocks are seeds: within one, all variants share initial weights, tokens and their order, so a variant is held against
the reference seed by seed and the differences are averaged, never the means subtracted. Plain float64, seeds in order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import kendalltau

Status = Literal["finished", "diverged", "unfinished"]


@dataclass(frozen=True)
class Variant:
    """One variant's finished runs."""

    label: str
    name: str
    rotate: tuple[str, ...]
    loss_by_seed: Mapping[int, float]  # validation, nats per token; finished runs alone
    status: Status  # finished: at least one run is


@dataclass(frozen=True)
class Row:
    """One variant of the table. None stands where there is no number; an unfinished or diverged run never gives one."""

    label: str
    name: str
    rotate: tuple[str, ...]
    num_seeds: int
    loss_mean: float | None
    loss_sd: float | None
    delta: float | None
    delta_sd: float | None
    verdict: str
    rank: int | None
    published_loss: float | None
    published_delta: float | None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1); None of fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def seeds_in_order(loss_by_seed: Mapping[int, float]) -> list[float]:
    """The losses by ascending seed, so that sums do not depend on the order of reading."""
    return [loss_by_seed[seed] for seed in sorted(loss_by_seed)]


def paired_differences(
    loss_by_seed: Mapping[int, float], reference: Mapping[int, float]
) -> dict[int, float]:
    """Loss minus the reference's, for each seed that both have finished, by ascending seed."""
    return {
        seed: loss_by_seed[seed] - reference[seed]
        for seed in sorted(loss_by_seed.keys() & reference.keys())
    }


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the lowest; equals share the better rank, and the next rank is left out."""
    ordered = sorted(values.values())
    return {label: ordered.index(value) + 1 for label, value in values.items()}


def kendall_tau(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[float | None, int]:
    """Kendall's tau-b over the labels that both have, and their number.

    tau-b = (C - D) / sqrt((n0 - n1)(n0 - n2)), where C and D count concordant and discordant pairs, n0 all pairs, n1
    and n2 the pairs tied in ours and in theirs. None where that is 0/0: fewer than two labels, or all equal.
    """
    both = sorted(ours.keys() & theirs.keys())
    x, y = [ours[label] for label in both], [theirs[label] for label in both]
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None, len(both)
    return float(kendalltau(x, y, variant="b").statistic), len(both)


def compare(
    variants: Sequence[Variant], reference: str, published: Mapping[str, float]
) -> list[Row]:
    """The table's rows, best first; variants without a number last, by label.

    Args:
        variants: any order; labels differ.
        reference: the label that deltas are against; without it, or without a finished run of it, there are none.
        published: losses by label.
    """
    base = next((variant.loss_by_seed for variant in variants if variant.label == reference), {})
    means = {
        v.label: float(np.mean(seeds_in_order(v.loss_by_seed))) for v in variants if v.loss_by_seed
    }
    rank = ranks(shared_means(variants))
    rows = [_row(variant, base, means, rank, reference, published) for variant in variants]
    return sorted(
        rows,
        key=lambda row: (row.loss_mean is None, row.rank or 0, row.loss_mean or 0.0, row.label),
    )


def shared_means(variants: Sequence[Variant]) -> dict[str, float]:
    """Each variant's mean over the seeds that all with a loss have finished: what an order may be read from.

    A mean over other seeds differs by the seeds too. Empty where no seed is shared.
    """
    having = [variant for variant in variants if variant.loss_by_seed]
    shared = (
        set.intersection(*(set(variant.loss_by_seed) for variant in having)) if having else set()
    )
    if not shared:
        return {}
    return {
        v.label: float(np.mean([v.loss_by_seed[seed] for seed in sorted(shared)])) for v in having
    }


def _row(
    variant: Variant,
    base: Mapping[int, float],
    means: Mapping[str, float],
    rank: Mapping[str, int],
    reference: str,
    published: Mapping[str, float],
) -> Row:
    label = variant.label
    differences = list(paired_differences(variant.loss_by_seed, base).values())
    known = label in published and reference in published
    return Row(
        label=label,
        name=variant.name,
        rotate=variant.rotate,
        num_seeds=len(variant.loss_by_seed),
        loss_mean=means.get(label),
        loss_sd=deviation(seeds_in_order(variant.loss_by_seed)),
        delta=mean(differences),
        delta_sd=deviation(differences),
        verdict="" if variant.status == "finished" else variant.status,
        rank=rank.get(label),
        published_loss=published.get(label),
        published_delta=published[label] - published[reference] if known else None,
    )
