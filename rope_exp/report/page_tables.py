"""The tables of the page: columns, and cells with a displayed text and a sort key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from rope_exp.evidence.runs import Run
from rope_exp.report.spelling import Column
from rope_exp.run.provenance import spelled

# The hashes and the commit are shown as code.
_CODE = ("git", *(f"{name}_sha256" for name in ("config", "group", "data", "init", "order")))
RUNS = [
    Column("run", "where"),
    Column("variant", "variant"),
    Column("attention", "attention"),
    Column("seed", "seed", "d"),
    Column("status", "status"),
    Column("loss", "val/loss", ".4f"),
    Column("tokens", "tokens", ",.0f"),
    Column("parameters", "params", ",.0f"),
    Column("wall time (min)", "minutes", ".1f"),
    Column("device", "device"),
    Column("CPU kind", "cpu"),
    Column("threads", "num_threads", "s"),
    Column("torch", "torch"),
    Column("commit", "git"),
    Column("started (UTC)", "started"),
    Column("config", "config_sha256"),
    Column("group", "group_sha256"),
    Column("data", "data_sha256"),
    Column("initial weights", "init_sha256"),
    Column("order", "order_sha256"),
]


def page_table(
    columns: Sequence[Column], frame: pd.DataFrame, ids: Iterable[str]
) -> dict[str, Any]:
    """Return columns of a frame as plain data: titles with their kind, and cells of each line.

    A cell is a text, or [text, sort key]; a missing value has no key, and sorts last.
    """
    rows = []
    for key, line in zip(ids, frame.to_dict("records"), strict=True):
        rows.append({"id": key, "cells": [_cell(column, line) for column in columns]})
    titled = [{"title": column.heading, "kind": _kind(column)} for column in columns]
    return {"columns": titled, "rows": rows}


def _kind(column: Column) -> str:
    return "number" if column.form else "code" if column.key in _CODE else "text"


def _cell(column: Column, line: Mapping[Any, Any]) -> str | list[Any]:
    text = column.spell(line)
    value = line[column.key]
    if pd.isna(value) or value == "":
        return [text, None]
    # A text that is its own sort key needs no second entry.
    return text if text == value else [text, value]


def runs_table(runs: Sequence[Run]) -> dict[str, Any]:
    """Return a line for each run, with its environment and its hashes."""
    keys = [column.key for column in RUNS]
    lines = []
    for run in runs:
        wall_s = run.result.get("wall_s")
        lines.append(
            {
                **{key: spelled(run.env[key]) for key in keys if run.env.get(key) is not None},
                **run.result,
                "where": run.where,
                "variant": run.variant_name,
                "attention": run.config.attn.label,
                "seed": run.config.seed,
                "status": run.status,
                "minutes": None if wall_s is None else wall_s / 60,
                "started": ", ".join(run.env.get("started", [])),
            }
        )
    frame = pd.DataFrame(lines, columns=keys, dtype=object)
    return page_table(RUNS, frame, frame["where"])
