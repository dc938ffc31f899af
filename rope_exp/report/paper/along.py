"""Ladders: runs of several campaigns along one factor, by the factor's value.

Runs of a ladder are equal except for variant, seed, and one factor with its companions. For
example, a longer window takes fewer sequences for the same number of tokens.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rope_exp.evidence.comparable import value_of
from rope_exp.evidence.runs import Run

# The keys that may change with a factor, or sections of keys.
_KEYS_ALONG: Mapping[str, Sequence[str]] = {
    "model.hidden_size": ("model",),
    "train.seq_len": (
        "train.seq_len",
        "train.global_batch_size",
        "train.micro_batch_size",
        "train.eval_sequences",
    ),
}
_OF_ROWS = ("pe", "seed")


def keys_along(factor: str) -> Sequence[str]:
    """Return the keys that may differ along a factor's ladder."""
    return _KEYS_ALONG.get(factor, (factor,))


def by_level(runs: Iterable[Run], factor: str) -> dict[float, list[Run]]:
    """Return runs by the value of a numeric factor, ascending."""
    levels: dict[float, list[Run]] = {}
    for run in runs:
        levels.setdefault(float(value_of(run.config, factor)), []).append(run)
    return dict(sorted(levels.items()))


def ladders(runs: Sequence[Run], others: Iterable[Run], factor: str) -> list[list[Run]]:
    """Return a campaign's ladders, each with the runs of other campaigns that fit on it.

    Only variants of the campaign are added. If another campaign has the same variant, seed and
    level, the campaign's own run is used. A ladder has at least two levels.
    """
    found: dict[str, dict[tuple[Any, ...], Run]] = {}
    for run in runs:
        place = _surroundings(run, factor)
        found.setdefault(place, {}).setdefault(_cell(run, factor), run)

    variants = {run.config.pe.label for run in runs}
    for run in others:
        ladder = found.get(_surroundings(run, factor))
        if ladder is not None and run.config.pe.label in variants:
            ladder.setdefault(_cell(run, factor), run)

    listed = [list(ladder.values()) for _, ladder in sorted(found.items())]
    return [ladder for ladder in listed if len(by_level(ladder, factor)) > 1]


def neighbours(runs: Sequence[Run], others: Iterable[Run]) -> list[Run]:
    """Return runs of other campaigns, with further variants, that fit in the table of `runs`."""
    places = {_surroundings(run, "") for run in runs}
    variants = {run.config.pe.label for run in runs}
    found: dict[tuple[Any, ...], Run] = {}
    for run in others:
        if run.config.pe.label not in variants and _surroundings(run, "") in places:
            found.setdefault(_cell(run, "seed"), run)
    return list(found.values())


def companions(runs: Sequence[Run], factor: str) -> list[str]:
    """Return the keys that change along a ladder together with its factor."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in _flat(run.config.numeric_dict()):
            values.setdefault(key, set()).add(json.dumps(value))
    changed = [key for key, seen in values.items() if len(seen) > 1 and key != factor]
    return [key for key in changed if not _within(key, _OF_ROWS)]


def _cell(run: Run, factor: str) -> tuple[Any, ...]:
    return value_of(run.config, factor), run.config.pe.label, run.config.seed


def _surroundings(run: Run, factor: str) -> str:
    """Return as JSON all values that are equal on a ladder, and the tokens if length varies."""
    but = (*keys_along(factor), *_OF_ROWS)
    values = run.config.numeric_dict()
    kept = {key: value for key, value in _flat(values) if not _within(key, but)}
    kept["corpus"] = run.result.get("data_sha256")
    if factor == "train.seq_len":
        kept["tokens"] = run.config.train.num_tokens
    return json.dumps(kept, sort_keys=True)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield every key at any depth, with its value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _within(key: str, sections: Iterable[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)
