"""The tables of the page: columns, and cells with a displayed text and a sort key."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rope_exp.evidence.runs import Run
from rope_exp.report.answers import bins, explained, shares, splits, whole, with_answers
from rope_exp.report.content import Line, Report
from rope_exp.report.sentences import OWN, mark_change, spell_interval, spell_p
from rope_exp.report.spelling import NOTHING
from rope_exp.report.tables import cells
from rope_exp.run.provenance import spelled

Key = float | str | None
Table = dict[str, Any]


class Column(NamedTuple):
    """A column's heading, and its kind: text, number or code."""

    title: str
    kind: str = "text"


class Shown(NamedTuple):
    """A cell: its displayed text and its sort key. Cells without a key sort last."""

    text: str
    key: Key


def _table(columns: Iterable[Column], rows: Mapping[str, Sequence[Shown]]) -> Table:
    listed = []
    for key, row in rows.items():
        # A text that is its own sort key needs no second entry.
        cells_of = [cell.text if cell.text == cell.key else list(cell) for cell in row]
        listed.append({"id": key, "cells": cells_of})
    return {"columns": [column._asdict() for column in columns], "rows": listed}


def _number(value: float | None, form: str) -> Shown:
    if value is None or math.isnan(value):
        return Shown(NOTHING, None)
    return Shown(format(value, form), value)


def _text(value: object) -> Shown:
    text = "" if value is None else str(value)
    return Shown(text or NOTHING, text or None)


# -- rows ------------------------------------------------------------------------------------------


def table_of_rows(report: Report) -> Table:
    """Return the table of table.md, with cells that sort by their numbers."""
    columns: dict[str, Column] = {}
    rows = {}
    for label, row in report.rows.items():
        shown = []
        for cell in cells(report, row):
            if not cell.header:
                continue
            columns[cell.header] = Column(cell.header, "number" if cell.format else "text")
            key = _sort_keys(report, row).get(cell.header, cell.value)
            shown.append(Shown(cell.spell(cell.format) or NOTHING, key))
        rows[label] = shown
    return _table(columns.values(), rows)


def _sort_keys(report: Report, row: Line) -> dict[str, Key]:
    """Return the sort keys of columns that do not sort by their displayed value."""
    # A verdict that replaces a loss has no number, and sorts last.
    keys: dict[str, Key] = {"loss (mean)": row.ours.loss_mean}
    judged = report.against.get(row.label)
    if judged is not None:
        keys |= {"95 % interval": judged.low, "p (Holm)": judged.p_adjusted}
        keys[OWN] = report.alone.against[row.label].low
    return keys


def relations_table(report: Report) -> Table:
    """Return the published relations, one by one."""
    columns = [
        Column("published"),
        Column("ours"),
        Column("Δ", "number"),
        Column("95 % interval", "number"),
        *([Column(OWN, "number")] if report.is_pooled else []),
        Column("p (Holm)", "number"),
        Column("seeds", "number"),
        Column("outcome"),
        Column("seeds needed", "number"),
    ]
    rows = {}
    for relation, own in zip(report.relations, report.alone.relations, strict=True):
        pair = relation.judged
        a = report.rows[pair.a].name
        b = report.rows[pair.b].name
        needed = pair.seeds_needed if relation.outcome == "open" else None
        rows[f"{pair.a} {pair.b}"] = [
            _text(f"{a} {relation.published} {b}"),
            _text(f"{a} {pair.sign} {b}"),
            _number(pair.delta, "+.4f"),
            Shown(spell_interval(pair), pair.low),
            *([Shown(spell_interval(own.judged), own.judged.low)] if report.is_pooled else []),
            Shown(spell_p(pair.p_adjusted), pair.p_adjusted),
            _number(pair.num_seeds, "d"),
            _text(relation.outcome + mark_change(relation.outcome, own.outcome)),
            _number(needed, "d"),
        ]
    return _table(columns, rows)


def answers_table(report: Report) -> Table:
    """Return the answers on generated data: exact matches, or else R²; no rows without either."""
    parts = {}
    for split in splits(report):
        parts[f"right, {split}"] = whole(report, split)
        parts |= {f"{split}, {part.name}": part for part in bins(report, split)}

    rows = {}
    for row in with_answers(report):
        seeds = {run.config.seed for run in row.runs if "answers" in run.probes}
        found = [list(shares(row, part).values()) for part in parts.values()]
        means = [statistics.mean(values) if values else None for values in found]
        counted = [_text(row.name), _number(len(seeds), "d")]
        rows[row.label] = [*counted, *(_number(mean, ".1%") for mean in means)]
    titles = list(parts)

    if not rows:
        titles = ["R²", "lowest", "highest"]
        for label, values in explained(report).items():
            shown = [statistics.mean(values), min(values), max(values)]
            counted = [_text(report.rows[label].name), _number(len(values), "d")]
            rows[label] = [*counted, *(_number(value, ".4f") for value in shown)]

    numbers = [Column(title, "number") for title in ("seeds", *titles)]
    return _table([Column("variant"), *numbers], rows)


# -- runs ------------------------------------------------------------------------------------------


def _env(key: str) -> Callable[[Run], Shown]:
    return lambda run: _text(spelled(run.env[key]) if run.env.get(key) is not None else None)


def _result(key: str) -> Callable[[Run], Shown]:
    return lambda run: _text(run.result.get(key))


def _value(key: str, form: str, per: float = 1) -> Callable[[Run], Shown]:
    def shown(run: Run) -> Shown:
        value = run.result.get(key)
        return _number(None if value is None else value / per, form)

    return shown


def _started(run: Run) -> Shown:
    return _text(", ".join(run.env.get("started", [])))


_OF_RUNS: Mapping[Column, Callable[[Run], Shown]] = {
    Column("run"): lambda run: _text(run.where),
    Column("variant"): lambda run: _text(run.variant_name),
    Column("attention"): lambda run: _text(run.config.attn.label),
    Column("seed", "number"): lambda run: _number(run.config.seed, "d"),
    Column("status"): lambda run: _text(run.status),
    Column("loss", "number"): _value("val/loss", ".4f"),
    Column("tokens", "number"): _value("tokens", ",.0f"),
    Column("parameters", "number"): _value("params", ",.0f"),
    Column("wall time (min)", "number"): _value("wall_s", ".1f", per=60),
    Column("device"): _env("device"),
    Column("CPU kind"): _env("cpu"),
    Column("threads", "number"): _env("num_threads"),
    Column("torch"): _env("torch"),
    Column("commit", "code"): _env("git"),
    Column("started (UTC)"): _started,
    Column("config", "code"): _result("config_sha256"),
    Column("group", "code"): _result("group_sha256"),
    Column("data", "code"): _result("data_sha256"),
    Column("initial weights", "code"): _result("init_sha256"),
    Column("order", "code"): _result("order_sha256"),
}


def runs_table(runs: Sequence[Run]) -> Table:
    """Return a line for each run, with its environment and its hashes."""
    rows = {run.where: [shown(run) for shown in _OF_RUNS.values()] for run in runs}
    return _table(_OF_RUNS, rows)
