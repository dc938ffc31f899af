"""Judged pairs of rows, as frames: all pairs for pairs.csv, and the published relations."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from rope_exp.evidence.significance import MOST_SEEDS, SIGNS, Judged
from rope_exp.report.content import Relation, Report
from rope_exp.report.sentences import OWN, interval_alone, p_of, told_interval
from rope_exp.report.spelling import Column, csv_of, interval, span

_COLUMNS = [
    "a",
    "sign",
    "b",
    "num_seeds",
    "delta",
    "delta_ci_low",
    "delta_ci_high",
    "delta_wide_low",
    "delta_wide_high",
    "p",
    "p_adjusted",
    "p_equivalent",
    "seeds_needed_low",
    "seeds_needed_high",
    "sign_alone",
    "delta_ci_low_alone",
    "delta_ci_high_alone",
    "p_adjusted_alone",
]


def pairs_table(report: Report) -> str:
    """Return pairs.csv: every pair of rows, judged together; delta is b's loss minus a's.

    The last columns are from the paired t test.
    """
    table = _judged(report.pairs.values())
    alone = _judged(report.alone.pairs.values())
    table = table.merge(alone, on=["a", "b"], suffixes=("", "_alone"))
    counts = dict.fromkeys(["seeds_needed_low", "seeds_needed_high"], "Int64")
    return csv_of(table[_COLUMNS].astype(counts))


def _judged(pairs: Iterable[Judged]) -> pd.DataFrame:
    """Return pairs as a frame, with intervals named as in table.csv."""
    table = pd.DataFrame([{**asdict(pair), "sign": pair.sign} for pair in pairs])
    intervals = {"low": "delta_ci_low", "high": "delta_ci_high"}
    wide = {"wide_low": "delta_wide_low", "wide_high": "delta_wide_high"}
    return table.rename(columns=intervals | wide)


def relations_frame(report: Report) -> pd.DataFrame:
    """Return a line for each published relation, with its test and its outcome."""
    lines: list[dict[str, Any]] = []
    for relation, own in zip(report.relations, report.alone.relations, strict=True):
        pair = relation.judged
        a = report.rows[pair.a].name
        b = report.rows[pair.b].name
        mark = "" if relation.outcome == own.outcome else " †"
        settling = f"; {_settling(relation)}" if relation.outcome == "open" else ""
        lines.append(
            {
                "published": f"{a} {relation.published} {b}",
                "ours": f"{a} {pair.sign} {b}",
                "delta": pair.delta,
                "delta_ci_low": pair.low,
                "delta_ci_high": pair.high,
                "delta_ci_low_alone": own.judged.low,
                "delta_ci_high_alone": own.judged.high,
                "p": p_of(pair),
                "wide_low": pair.wide_low,
                "wide_high": pair.wide_high,
                "num_seeds": pair.num_seeds,
                "outcome": f"{relation.outcome}{mark}{settling}",
            }
        )
    return pd.DataFrame(lines)


def relations_columns(report: Report) -> list[Column]:
    """Return the columns of `relations_frame` for readers."""
    size = report.num_relations
    own = [Column(OWN, "delta_ci_low_alone", "s", interval_alone)]
    family = [Column(f"for all {size} (Bonferroni)", "wide_low", "s", _wide)]
    return [
        Column("published", "published"),
        Column("ours", "ours"),
        Column("Δ", "delta", "+.4f"),
        Column("95 % interval", "delta_ci_low", "s", told_interval),
        *(own if report.is_pooled else []),
        *(family if size > 1 else []),
        Column("p (Holm)", "p", "s"),
        Column("seeds", "num_seeds", "d"),
        Column("outcome at this setting", "outcome"),
    ]


def _wide(line: Mapping[str, Any]) -> str:
    return interval(line["wide_low"], line["wide_high"])


def _settling(relation: Relation) -> str:
    """Say how an open published relation could be settled."""
    pair = relation.judged
    if pair.verdict != "open":
        return "a difference is shown, but not whether it exceeds the margin"
    if pair.seeds_needed_low is None:
        return f"settling it needs more than {MOST_SEEDS} seeds"
    fewest = pair.seeds_needed_low - pair.num_seeds
    if pair.seeds_needed_high is None:
        count = f"{fewest} to more than {MOST_SEEDS - pair.num_seeds}"
    else:
        count = span((fewest, pair.seeds_needed_high - pair.num_seeds))
    seeds = "seed" if count == "1" else "seeds"
    told = f"{count} more {seeds} would settle it in 4 of 5 cases"
    if relation.published == SIGNS["equivalent"]:
        return f"{told}; a difference may then still be below the margin"
    return told
