"""The order of variants at each size and budget of the ladders, and agreement between orders."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.contrasts import Losses, compare, kendall_tau
from rope_exp.evidence.runs import Run
from rope_exp.report.spelling import markdown_table, millions


class _Delta(NamedTuple):
    """The mean difference to the reference within a seed, and the number of seeds."""

    mean: float
    num_seeds: int


_Level = Mapping[str, _Delta]  # by variant
_Place = tuple[int, int]  # parameters, tokens


def orders(runs: Sequence[Run], length: int) -> list[str]:
    """Return the differences to the reference at each size and budget, and tau between any two.

    Args:
        runs: the runs of the ladders; those of other lengths are left out.
        length: training length, in tokens.
    Returns:
        The caption and the table; empty with fewer than two levels.
    """
    levels = _levels(runs, length)
    if len(levels) < 2:
        return []

    by_fullness = sorted(levels.values(), key=_num_differences, reverse=True)
    # Variants that the fullest level lacks come last.
    ordered = [sorted(level, key=lambda label: level[label].mean) for level in by_fullness]
    lines = [
        {"variant": label, **{place: _told(level.get(label)) for place, level in levels.items()}}
        for label in dict.fromkeys(itertools.chain.from_iterable(ordered))
    ]
    return [
        "**Order at each size and budget: mean within-seed difference from "
        f"{published.REFERENCE}, with the number of seeds, at length {length}.** Columns are "
        "parameters, tokens (tokens per parameter). Not tested. Below: Kendall's tau with the "
        "order of another column, over shared variants.",
        markdown_table(pd.DataFrame(lines + _agreements(levels)).rename(columns=_spelled)),
    ]


def _levels(runs: Sequence[Run], length: int) -> dict[_Place, _Level]:
    """Return the levels by place, sorted by size and then by budget."""
    losses: dict[_Place, dict[str, dict[int, float]]] = {}
    for run in runs:
        if run.loss is not None and run.config.train.seq_len == length:
            of_rows = losses.setdefault((run.result["params"], run.config.train.num_tokens), {})
            of_rows.setdefault(run.config.pe.label, {})[run.config.seed] = run.loss
    levels = {place: _deltas(of_rows) for place, of_rows in sorted(losses.items())}
    return {place: deltas for place, deltas in levels.items() if deltas}


def _deltas(losses: Mapping[str, Losses]) -> _Level:
    found = {}
    reference = losses.get(published.REFERENCE, {})
    for label, contrast in compare(losses, published.REFERENCE).items():
        if contrast.delta is not None:
            found[label] = _Delta(contrast.delta, len(losses[label].keys() & reference.keys()))
    return found


def _told(delta: _Delta | None) -> str | None:
    return delta and f"{delta.mean:+.3f} ({delta.num_seeds})"


def _num_differences(level: _Level) -> int:
    return sum(delta.num_seeds for delta in level.values())


def _agreements(levels: Mapping[_Place, _Level]) -> list[dict[str | _Place, str | None]]:
    """Return a line for each level: tau with every other level."""
    lines = []
    for place, level in levels.items():
        line: dict[str | _Place, str | None] = {"variant": f"tau with {_spelled(place)}"}
        for other, theirs in levels.items():
            tau, count = kendall_tau(_means(level), _means(theirs))
            line[other] = None if tau is None or other == place else f"{tau:.2f} (n = {count})"
        lines.append(line)
    return lines


def _spelled(column: str | _Place) -> str:
    """Return a column's title. Titles of two places may be equal, as they have three digits."""
    if isinstance(column, str):
        return column
    params, tokens = column
    return f"{millions(params)}, {millions(tokens)} ({tokens / params:.2g})"


def _means(level: _Level) -> dict[str, float]:
    return {label: delta.mean for label, delta in level.items()}
