"""How a step's time and memory grow: one thing at a time is doubled, the tokens of a step stay the same."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.race import Entry, race
from rope_exp.config.run import RunConfig
from rope_exp.system.console import say

WIDTHS = (128, 256, 512, 1024)
AXES: dict[str, tuple[int, ...]] = {
    "length": (256, 512, 1024, 2048, 4096, 8192),
    "width": WIDTHS,
    "layers": (2, 4, 8, 16),
    "vocabulary": (2048, 8192, 32768, 131072),
}
TOKENS = 8192  # of a step, so that the longest sequence is one row
ROUNDS = 3


def growth(config_of: Callable[..., RunConfig]) -> dict[str, Any]:
    """By axis and value: step_s and peak_bytes; and by axis the exponent of the last doubling of each.

    Args:
        config_of: a config from overrides.
    """
    found: dict[str, Any] = {}
    for axis, values in AXES.items():
        points = {}
        for value in values:
            if axis == "vocabulary" and value < (config_of().tokenizer.known_vocab_size or 0):
                continue  # the corpus has ids beyond it
            say(f"  {axis} {value}")
            config = config_of(*_overrides(axis, value))
            assert config.train.global_batch_size * config.train.seq_len == TOKENS
            entry = Entry("bare", config, vocab_size=value if axis == "vocabulary" else None)
            [summary] = race({str(value): entry}, rounds=ROUNDS, steps=1, warmup=1).values()
            points[value] = {"step_s": summary["step_s"][1], "peak_bytes": summary["peak_bytes"]}
        found[axis] = {"points": points, **_exponents(points)}
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The result, for a person."""
    for axis, values in found.items():
        points = ", ".join(
            f"{value}: {point['step_s']:.2f} s, {point['peak_bytes'] / 2**20:,.0f} MiB"
            for value, point in values["points"].items()
        )
        yield (
            f"growth: {axis}: {points}; at the last doubling as the power {values['time_exponent']:.2f} "
            f"in time, {values['memory_exponent']:.2f} in memory"
        )


def _overrides(axis: str, value: int) -> list[str]:
    length = value if axis == "length" else 256
    common = [
        f"train.seq_len={length}",
        f"train.global_batch_size={TOKENS // length}",
        "train.micro_batch_size=null",
    ]
    own = {
        "width": [
            f"model.hidden_size={value}",
            f"model.intermediate_size={value * 11 // 4}",
            f"model.num_attention_heads={value // 64}",
            f"model.num_key_value_heads={value // 64}",
        ],
        "layers": [f"model.num_hidden_layers={value}"],
    }
    return common + own.get(axis, [])


def _exponents(points: dict[int, dict[str, float]]) -> dict[str, float]:
    *_, (value_before, before), (value, last) = points.items()
    doublings = math.log(value / value_before)
    return {
        "time_exponent": float(np.log(last["step_s"] / before["step_s"]) / doublings),
        "memory_exponent": float(np.log(last["peak_bytes"] / before["peak_bytes"]) / doublings),
    }
