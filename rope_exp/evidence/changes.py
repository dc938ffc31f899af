"""Change of each row's gain over NoPE from one setting to another, seed by seed.

The gain of a row r at a seed s is loss(NoPE, s) - loss(r, s). Its change is the gain here minus the
gain there. With d_rs = loss_here(r, s) - loss_there(r, s), it is d(NoPE, s) - d(r, s): a contrast
of two rows in the layout of d, seed x row. So d is judged as losses are.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rope_exp.evidence.contrasts import Losses
from rope_exp.evidence.layout import Noise, measure, two_sided_f
from rope_exp.evidence.published import UNROTATED
from rope_exp.evidence.significance import Judged, judge


@dataclass(frozen=True)
class Change:
    """A row's gain over NoPE here and there, in the unit of the losses.

    Attributes:
        gain_here, gain_there: the means over the seeds.
        by_seed: the gain here minus the gain there.
        judged: the test of the mean change, in one family of all rows; None with fewer than two
            seeds.
    """

    label: str
    gain_here: float
    gain_there: float
    by_seed: Mapping[int, float]
    judged: Judged | None

    @property
    def mean(self) -> float:
        """The mean change over the seeds."""
        return statistics.mean(self.by_seed.values())


def find_changes(here: Mapping[str, Losses], there: Mapping[str, Losses]) -> list[Change]:
    """Return the change of each row that both settings have, largest first.

    Args:
        here, there: losses by the rows' labels; only seeds that a row and NoPE have in both count.
    """
    differences: dict[str, Losses] = {}
    for label, seeds in _shared(here, there).items():
        differences[label] = {seed: here[label][seed] - there[label][seed] for seed in seeds}

    unrotated = differences.get(UNROTATED, {})
    others = sorted(label for label in differences if label != UNROTATED)
    family = judge(differences, [(label, UNROTATED) for label in others], measure(differences))
    judged = {pair.a: pair for pair in family}

    changes = []
    for label in others:
        seeds = sorted(differences[label].keys() & unrotated.keys())
        if seeds:
            change = Change(
                label,
                _gain(here, label, seeds),
                _gain(there, label, seeds),
                {seed: unrotated[seed] - differences[label][seed] for seed in seeds},
                judged.get(label),
            )
            changes.append(change)
    return sorted(changes, key=lambda change: -change.mean)


def compare_noise(
    here: Mapping[str, Losses], there: Mapping[str, Losses]
) -> tuple[Noise, Noise, float] | None:
    """Return the residual noise of the runs that both settings share, here and there, and a p.

    Returns:
        p of equal standard deviations, by a two-sided F test that treats the two as independent;
        None if the shared runs have no residual.
    """
    shared = _shared(here, there)
    found = [
        measure({label: {seed: losses[label][seed] for seed in shared[label]} for label in shared})
        for losses in (here, there)
    ]
    ours, theirs = found
    if ours is None or theirs is None or not ours.deviation or not theirs.deviation:
        return None
    ratio = np.array((ours.deviation / theirs.deviation) ** 2)
    return ours, theirs, float(two_sided_f(ratio, ours.df, theirs.df))


def _shared(here: Mapping[str, Losses], there: Mapping[str, Losses]) -> dict[str, list[int]]:
    """Return the seeds that each row has in both settings."""
    labels = sorted(here.keys() & there.keys())
    return {label: sorted(here[label].keys() & there[label].keys()) for label in labels}


def _gain(losses: Mapping[str, Losses], label: str, seeds: list[int]) -> float:
    return statistics.mean(losses[UNROTATED][seed] - losses[label][seed] for seed in seeds)
