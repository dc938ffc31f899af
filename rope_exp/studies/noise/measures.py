"""Noise of losses in the pilot, which preceded the protocol: from seeds, rounding and windows.

Each cell of the pilot is one variant. Seeds of initial weights and of order vary alone or together,
and so does the way in which the same numbers are computed. Plain float64, nats.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from rope_exp.config.campaign_file import SEEDS
from rope_exp.evidence.runs import Run
from rope_exp.system.errors import show

Array = NDArray[np.float64]

RATE = "optim.lr"
# A document of the English corpus fills about nine of the windows spread over it.
WINDOWS_OF_A_BLOCK = 8
NUM_BOOTSTRAPS = 10_000
LEAST_VALUES = 3  # for a standard deviation


@dataclass(frozen=True)
class Spread:
    """Standard deviations of losses and differences when one source varies.

    Attributes:
        what: the source that varies, and the learning rate.
        count: the number of its values.
        losses: of a row's loss, by row.
        paired: of two rows' difference at the same value, by pair.
        unpaired: the same for two rows at different values.
    """

    what: str
    count: int
    losses: Mapping[str, float]
    paired: Mapping[tuple[str, str], float]
    unpaired: Mapping[tuple[str, str], float]

    @property
    def ratio(self) -> float | None:
        """The paired deviation over the unpaired, root mean squares over pairs."""
        if not any(self.unpaired.values()):
            return None
        return _rms(list(self.paired.values())) / _rms(list(self.unpaired.values()))

    @property
    def known_within(self) -> tuple[float, float]:
        """The factors from a standard deviation of `count` values to its 95 % interval."""
        df = self.count - 1
        low = math.sqrt(df / float(stats.chi2.ppf(0.975, df)))
        return low, math.sqrt(df / float(stats.chi2.ppf(0.025, df)))


def spreads(runs: Sequence[Run]) -> list[Spread]:
    """Return the deviations under initial weights, order, and both together, at each learning rate.

    At least three values are needed: two say nothing about a standard deviation.
    """
    found = []
    for rate, of_rate in by_rate(runs).items():
        plain = [run for run in of_rate if not changes(run)]
        first = min((run.config.seed for run in plain), default=0)
        kinds = {
            "initial weights": [run for run in plain if run.config.order_seed == first],
            "order of batches": [run for run in plain if run.config.seed == first],
            "weights and order": [run for run in plain if run.config.seed == run.config.order_seed],
        }
        for what, varying in kinds.items():
            found.append(_spread(f"{what}, at learning rate {show(rate)}", varying))
    return [spread for spread in found if spread is not None]


def by_rate(runs: Sequence[Run]) -> dict[float, list[Run]]:
    """Return the finished runs of each learning rate, in ascending order."""
    found: dict[float, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.optim.lr):
        if run.loss is not None:
            found.setdefault(run.config.optim.lr, []).append(run)
    return found


def changes(run: Run) -> dict[str, Any]:
    """Return a cell's departures from the plain ones: all factors but seeds and learning rate."""
    return {key: value for key, value in run.factors.items() if key not in (*SEEDS, RATE)}


def rounding(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the change of each row's loss, and of pairs' differences, by change of computation.

    A line for each learning rate, change and choice of seeds, against the plain cell of the same
    seeds; columns are rows and pairs, NaN where a cell is missing.
    """
    lines = []
    for rate, of_rate in by_rate(runs).items():
        plain = {(run.row, _seeds(run)): _loss(run) for run in of_rate if not changes(run)}
        found: dict[tuple[str, tuple[int, int]], dict[str, float]] = {}
        for run in of_rate:
            before = plain.get((run.row, _seeds(run)))
            if changes(run) and before is not None:
                what = ", ".join(f"{key}={show(value)}" for key, value in changes(run).items())
                found.setdefault((what, _seeds(run)), {})[run.row] = _loss(run) - before
        lines += [{"rate": rate, "change": what, **of_rows} for (what, _), of_rows in found.items()]

    table = pd.DataFrame(lines)
    rows = [column for column in table.columns if column not in ("rate", "change")]
    for a, b in itertools.combinations(rows, 2):
        table[f"{b} - {a}"] = table[b] - table[a]
    return table


def window_errors(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the standard error of each pair's difference due to the choice of held-out windows.

    The bootstrap resamples single windows, and blocks of neighbours. Plain runs' differences are
    first averaged over the seeds that vary together: the windows are one draw for all seeds.
    """
    rows = []
    for rate, of_rate in by_rate(runs).items():
        losses: dict[str, dict[tuple[int, int], Array]] = {}
        for run in of_rate:
            if not changes(run) and len(set(_seeds(run))) == 1 and "windows" in run.probes:
                windows_N = np.array(run.probes["windows"]["loss"])
                losses.setdefault(run.row, {})[_seeds(run)] = windows_N

        for a, b in itertools.combinations(losses, 2):
            shared = sorted(losses[a].keys() & losses[b].keys())
            if not shared:
                continue
            differences_N = np.mean([losses[b][seed] - losses[a][seed] for seed in shared], axis=0)
            rows.append(
                {
                    "rate": rate,
                    "pair": f"{b} - {a}",
                    "seeds": len(shared),
                    "windows": len(differences_N),
                    "delta": float(differences_N.mean()),
                    "error": bootstrap_error(differences_N, 1),
                    "error of blocks": bootstrap_error(differences_N, WINDOWS_OF_A_BLOCK),
                }
            )
    return pd.DataFrame(rows)


def bootstrap_error(values_N: Array, block: int, seed: int = 0) -> float:
    """Return the standard error of a mean, by resampling blocks of neighbouring values.

    Values at the end that do not fill a block are left out.
    """
    means_M = values_N[: len(values_N) // block * block].reshape(-1, block).mean(axis=1)
    random = np.random.default_rng(seed)
    drawn = random.integers(len(means_M), size=(NUM_BOOTSTRAPS, len(means_M)))
    return float(means_M[drawn].mean(axis=1).std(ddof=1))


def _loss(run: Run) -> float:
    assert run.loss is not None, run.where
    return run.loss


def _seeds(run: Run) -> tuple[int, int]:
    return run.config.seed, run.config.order_seed


def _spread(what: str, runs: Sequence[Run]) -> Spread | None:
    found: dict[str, dict[tuple[int, int], float]] = {}
    for run in runs:
        if run.loss is not None:
            found.setdefault(run.row, {})[_seeds(run)] = run.loss
    table = pd.DataFrame(found).sort_index().dropna()
    if len(table) < LEAST_VALUES:
        return None

    paired = {}
    unpaired = {}
    for a, b in itertools.combinations(table.columns, 2):
        # Over all pairs of different values, the difference's variance is the sum of both.
        variance = table[a].var() + table[b].var()
        paired[a, b] = float((table[b] - table[a]).std())
        unpaired[a, b] = math.sqrt(variance)
    deviations = {row: float(table[row].std()) for row in table.columns}
    return Spread(what, len(table), deviations, paired, unpaired)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))
