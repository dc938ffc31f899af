"""Curves of a level for the page: losses and differences by training tokens, as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rope_exp.evidence.comparable import Row
from rope_exp.report.by_tokens import by_tokens

# For losses in the page: ten times finer than any difference read from a curve.
DECIMALS = 5
Numbers = list[float | None]


def curves(rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the validation losses of each row by training tokens.

    `mean` is the mean over finished seeds, null unless all have a value; `seeds` lists each run.
    """
    tables = {label: by_tokens(row.runs, "val/loss") for label, row in rows.items()}
    tokens = sorted({int(at) for table in tables.values() for at in table.index})

    drawn = {}
    for label, row in rows.items():
        table = tables[label].reindex(pd.Index(tokens))
        finished = list(row.losses)
        seeds = []
        for run in sorted(row.runs, key=lambda run: run.config.seed):
            seed = run.config.seed
            seeds.append({"seed": seed, "status": run.status, "loss": numbers(table[seed])})
        drawn[label] = {"mean": _mean(table[finished]), "seeds": seeds}
    return {"tokens": tokens, "rows": drawn}


def differences(rows: Mapping[str, Row], reference: Row, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the mean differences to the reference over shared finished seeds."""
    found = {}
    base = by_tokens(reference.runs, "val/loss").reindex(pd.Index(tokens))
    for label, row in rows.items():
        shared = [seed for seed in row.losses if seed in reference.losses]
        table = by_tokens(row.runs, "val/loss").reindex(pd.Index(tokens))
        found[label] = _mean(table[shared] - base[shared])
    return found


def numbers(values: "pd.Series[float]") -> Numbers:
    """Return rounded numbers for JSON, with None for NaN."""
    rounded = values.round(DECIMALS)
    return [None if pd.isna(value) else float(value) for value in rounded]


def _mean(table_TS: pd.DataFrame) -> Numbers:
    return numbers(table_TS.mean(axis="columns", skipna=False))
