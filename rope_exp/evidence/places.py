"""Answers of one finished model to the probes that depend on a place, under plain names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# The probes that are answered by place only.
BY_PLACE = ("positions", "shift", "ablation", "repeat", "distance")

Numbers = dict[Any, float]


def by_place(probe: str, answer: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return a run's answer to one of BY_PLACE: numbers by name, and by place.

    Losses by length of window (`positions`), by the first position of a bin (`bins`), by start of
    positions (`shift`), without the rotation of a site (`ablation`), at the first and the second
    reading (`repeat`); the mean weight on a key by its distance, over layers (`distance`), beside
    uniform weights (`uniform`).
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
        "repeat": ("reading", "loss"),
    }[probe]
    found = {probe: _numbers(answer[places], answer[losses])}
    if probe == "positions":
        found["bins"] = _numbers(answer["edges"][:-1], answer["loss"])
    return found


def _numbers(places: Sequence[Any], numbers: Sequence[float]) -> Numbers:
    return dict(zip(places, numbers, strict=True))
