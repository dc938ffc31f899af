"""The order of variants at each size and budget of the ladders, and agreement between orders."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.runs import Run
from rope_exp.report.spelling import markdown_table, millions
from rope_exp.studies.scaling.fit import differences

_PLACE = ["parameters", "tokens"]


def orders(runs: Sequence[Run], length: int) -> list[str]:
    """Return the differences to the reference at each size and budget, and tau between any two.

    Args:
        runs: the runs of the ladders; those of other lengths are left out.
        length: training length, in tokens.
    Returns:
        The caption and the table; empty with fewer than two levels.
    """
    of_length = [run for run in runs if run.config.train.seq_len == length]
    deltas = differences(of_length, published.REFERENCE).groupby(["pe", *_PLACE])["delta"]
    means = deltas.mean().unstack(_PLACE).sort_index(axis="columns")
    if means.shape[1] < 2:
        return []

    counts = deltas.count().unstack(_PLACE)[means.columns]
    # Variants that the fullest level lacks come last.
    by_fullness = counts.sum().sort_values(ascending=False, kind="stable").index
    of_levels = (means[place].dropna().sort_values().index for place in by_fullness)
    labels = list(dict.fromkeys(itertools.chain.from_iterable(of_levels)))
    told = means.map("{:+.3f} ".format) + counts.map("({:.0f})".format)
    told = told.where(means.notna()).loc[labels]
    titles = [_spelled(*map(int, place)) for place in means.columns]
    table = pd.concat([told, _agreements(means)]).set_axis(titles, axis="columns")
    table.insert(0, "variant", [*labels, *(f"tau with {title}" for title in titles)])
    return [
        "**Order at each size and budget: mean within-seed difference from "
        f"{published.REFERENCE}, with the number of seeds, at length {length}.** Columns are "
        "parameters, tokens (tokens per parameter). Not tested. Below: Kendall's tau with the "
        "order of another column, over shared variants.",
        markdown_table(table),
    ]


def _agreements(means: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each level: tau with every other level, as text."""
    has = means.notna().astype(int)
    shared = has.T @ has
    taus = means.corr(method="kendall", min_periods=2)
    told = taus.map("{:.2f}".format) + shared.map(" (n = {})".format)
    is_itself = pd.DataFrame(np.eye(len(taus), dtype=bool), index=taus.index, columns=taus.columns)
    return told.where(taus.notna() & ~is_itself)


def _spelled(params: int, tokens: int) -> str:
    """Return a column's title. Titles of two places may be equal, as they have three digits."""
    return f"{millions(params)}, {millions(tokens)} ({tokens / params:.2g})"
