"""The last crossing of two variants' curves in training, after which one stays ahead.

Both curves have one seed, budget and schedule, so their learning rates are equal at each step. A
crossing within a run is not one of full schedules: a budget that ends there has another schedule.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from rope_exp.evidence.ladders import LEVEL


class Crossing(NamedTuple):
    """The place where a difference changes its sign for good, over seeds.

    Attributes:
        tokens: the geometric mean.
        low, high: its 95 % interval, by Student's t over the logarithms; None with one seed.
    """

    tokens: float
    low: float | None
    high: float | None


def last_crossing(difference: pd.Series) -> float | None:
    """Return the tokens at which a curve changes its sign for the last time; None if it never does.

    Args:
        difference: by tokens, ascending; linear between two of them. A 0 counts as below.
    """
    values = difference.to_numpy(dtype=float)
    tokens = difference.index.to_numpy(dtype=float)
    is_ahead = values > 0
    [changes] = np.nonzero(is_ahead[1:] != is_ahead[:-1])
    if not changes.size:
        return None
    last = changes[-1]
    before, after = values[last], values[last + 1]
    share = before / (before - after)
    return float(tokens[last] + share * (tokens[last + 1] - tokens[last]))


def crossing(tokens: Sequence[float]) -> Crossing:
    """Return the mean of the seeds' crossings with its interval."""
    logs = np.log(tokens)
    mean = float(logs.mean())
    if len(logs) == 1:
        return Crossing(float(np.exp(mean)), None, None)
    error = float(logs.std(ddof=1)) / np.sqrt(len(logs))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * error
    return Crossing(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)))
