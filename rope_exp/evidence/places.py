"""What a finished model was asked, by place: the numbers of one run, under plain names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# What is answered by place, and nothing else.
BY_PLACE = ("positions", "shift", "ablation", "distance")

Numbers = dict[Any, float]


def by_place(probe: str, answer: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return a run's answer to one of BY_PLACE: numbers by what they are, and by place.

    Losses by length of window (`positions`), by position, where a place is a bin's first (`bins`),
    by where positions begin (`shift`), without the rotation of a site (`ablation`); the mean weight
    on a key by its distance, over layers (`distance`), beside weights that are all alike
    (`uniform`).
    """
    if probe == "distance":
        over_layers = np.mean(list(answer["attention"].values()), axis=0)
        return {
            "distance": _numbers(answer["m"], over_layers.tolist()),
            "uniform": _numbers(answer["m"], answer["uniform"]),
        }

    places, losses = {
        "positions": ("lengths", "loss_at_length"),
        "shift": ("start", "loss"),
        "ablation": ("without", "loss"),
    }[probe]
    found = {probe: _numbers(answer[places], answer[losses])}
    if probe == "positions":
        found["bins"] = _numbers(answer["edges"][:-1], answer["loss"])
    return found


def _numbers(places: Sequence[Any], numbers: Sequence[float]) -> Numbers:
    return dict(zip(places, numbers, strict=True))
