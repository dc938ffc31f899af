"""Tables of answers on generated data: exact matches by span, and R².

A run's share is the fraction of its examples; a row's share is the mean over its seeds.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd

from rope_exp.evidence.comparable import Row
from rope_exp.evidence.contrasts import Losses
from rope_exp.evidence.matches import ROOM, count_matches, share_right
from rope_exp.evidence.significance import judge
from rope_exp.report.content import Line, Relation, Report, noise_of
from rope_exp.report.sentences import spell_p
from rope_exp.report.spelling import Column, markdown_of, number


@dataclass(frozen=True)
class Bin:
    """The examples of a split with spans from `first` to `last`, inclusive."""

    split: str
    first: int
    last: int

    @property
    def name(self) -> str:
        """The spans as text."""
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


def with_answers(report: Report) -> list[Line]:
    """Return the rows with exact matches; none if the data are of several kinds."""
    return [report.rows[label] for label in report.answers("answers")] if report.task else []


def splits(report: Report) -> list[str]:
    """Return the splits with answers, those with the shortest examples first."""
    asked = [run.probes["answers"] for run in report.runs if "answers" in run.probes]
    found = {split for answers in asked for split in answers}
    return sorted(found, key=lambda split: _spans(report, split))


def whole(report: Report, split: str) -> Bin:
    """Return one bin with all examples of a split."""
    spans = _spans(report, split)
    return Bin(split, spans[0], spans[-1])


def bins(report: Report, split: str) -> list[Bin]:
    """Return the bins of a split that have examples."""
    assert report.task is not None
    spans = _spans(report, split)
    found = []
    for first, following in pairwise([*report.task.bins, spans[-1] + 1]):
        inside = [span for span in spans if first <= span < following]
        if inside:
            found.append(Bin(split, inside[0], inside[-1]))
    return found


def shares(row: Row, part: Bin) -> dict[int, float]:
    """Return the share of a bin's examples answered without a wrong token, by seed."""
    found = {}
    for run in row.runs:
        share = share_right(run, part.split, part.first, part.last)
        if share is not None:
            found[run.config.seed] = share
    return found


def match_relations(report: Report) -> dict[str, list[Relation]]:
    """Return the published relations by split, judged by exact matches.

    The test uses the share of wrong answers instead of the loss; the margin is 1 point.
    """
    found = {}
    for split in splits(report):
        part = whole(report, split)
        wrong: dict[str, Losses] = {}
        for row in with_answers(report):
            wrong[row.label] = {seed: 1 - share for seed, share in shares(row, part).items()}

        claim = None if report.published else report.source
        signs = {(a, b): sign for a, sign, b in claim.relations} if claim else {}
        judged = judge(wrong, list(signs), noise_of(wrong, report.runs))
        relations = []
        for pair in judged:
            sign = signs[pair.a, pair.b]
            of_both = [*wrong[pair.a].values(), *wrong[pair.b].values()]
            has_room = max(of_both) > ROOM and min(of_both) < 1 - ROOM
            outcome = pair.outcome(sign) if has_room else "open; floor or ceiling effect"
            relations.append(Relation(sign, pair, outcome))
        found[split] = relations
    return found


# -- formats ---------------------------------------------------------------------------------------


def task_tables(report: Report) -> list[str]:
    """Return the parts of table.md with the answers on generated data."""
    parts = []
    if with_answers(report) and report.task:
        parts.append(
            f"Exact matches in %, by {report.task.span} (mean over seeds; for a whole split, "
            "with the SD over seeds):"
        )
        parts.append(markdown_of(*matches(report)))
        relations = match_relations(report)
        if any(relations.values()):
            parts.append(
                "Published relations, judged by exact matches (Δ: the first variant's share minus "
                "the second's, in percentage points):"
            )
            parts.append(markdown_of(*_relations(report, relations)))

    columns, frame = fits(report)
    if len(frame):
        parts.append("Explained variance (R²) on the held-out rows:")
        parts.append(markdown_of(columns, frame))
    return parts


def answers_csv(report: Report) -> str | None:
    """Return answers.csv: exact matches by row, split and bin; None if there are none."""
    lines: list[dict[str, Any]] = []
    for row in with_answers(report):
        for split in splits(report):
            for part in [whole(report, split), *bins(report, split)]:
                found = shares(row, part)
                values = list(found.values())
                if not values:
                    continue
                counts = [count_matches(run, split, part.first, part.last)[0] for run in row.runs]
                deviation = f"{statistics.stdev(values):.6f}" if len(values) > 1 else ""
                lines.append(
                    {
                        "pe": row.label,
                        "split": split,
                        "span_first": part.first,
                        "span_last": part.last,
                        "num_seeds": len(values),
                        "num_examples": sum(counts),
                        "right_mean": f"{statistics.mean(values):.6f}",
                        "right_sd": deviation,
                    }
                )
    return pd.DataFrame(lines).to_csv(index=False) if lines else None


def matches(report: Report) -> tuple[list[Column], pd.DataFrame]:
    """Return exact matches in %: a line for each row, a column for each split and bin."""
    parts = {split: bins(report, split) for split in splits(report)} if report.task else {}
    columns = [Column("variant", "name"), Column("seeds", "num_seeds", "d")]
    for split, found in parts.items():
        columns.append(Column(split, split, ".1f", partial(_with_spread, split)))
        columns += [Column(part.name, f"{split} {part.name}", ".1f") for part in found]

    lines = []
    for row in with_answers(report):
        seeds = {run.config.seed for run in row.runs if "answers" in run.probes}
        line: dict[str, Any] = {"label": row.label, "name": row.name, "num_seeds": len(seeds)}
        for split, found in parts.items():
            of_split = pd.Series(shares(row, whole(report, split)), dtype=float) * 100
            line[split] = of_split.mean()
            line[f"{split} sd"] = of_split.std()
            for part in found:
                of_part = pd.Series(shares(row, part), dtype=float) * 100
                line[f"{split} {part.name}"] = of_part.mean()
        lines.append(line)
    return columns, pd.DataFrame(lines)


def _with_spread(split: str, line: Mapping[str, Any]) -> str:
    spread = number(line[f"{split} sd"], ".1f")
    return f"{number(line[split], '.1f')}{f' ± {spread}' if spread else ''}"


def fits(report: Report) -> tuple[list[Column], pd.DataFrame]:
    """Return R² of each row with any: the mean over seeds, and the extremes."""
    lines = []
    for label, answers in report.answers("fit").items():
        found = [answer["r2"] for answer in answers]
        line = {"label": label, "name": report.rows[label].name, "num_seeds": len(found)}
        extremes = {"lowest": min(found), "highest": max(found)}
        lines.append({**line, "mean": statistics.mean(found), **extremes})
    columns = [
        Column("variant", "name"),
        Column("seeds", "num_seeds", "d"),
        Column("R²", "mean", ".4f"),
        Column("lowest", "lowest", ".4f"),
        Column("highest", "highest", ".4f"),
    ]
    return columns, pd.DataFrame(lines)


def _relations(
    report: Report, of_splits: Mapping[str, Sequence[Relation]]
) -> tuple[list[Column], pd.DataFrame]:
    """Return the published relations, judged by exact matches, in percentage points."""
    lines = []
    for split, relations in of_splits.items():
        for relation in relations:
            pair = relation.judged
            a = report.rows[pair.a].name
            b = report.rows[pair.b].name
            lines.append(
                {
                    "split": split,
                    "published": f"{a} {relation.published} {b}",
                    "ours": f"{a} {pair.sign} {b}",
                    "delta": 100 * pair.delta,
                    "interval": f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}",
                    "p": spell_p(pair.p_adjusted),
                    "num_seeds": pair.num_seeds,
                    "outcome": relation.outcome,
                }
            )
    columns = [
        Column("split", "split"),
        Column("published", "published"),
        Column("ours", "ours"),
        Column("Δ", "delta", "+.1f"),
        Column("95 % interval", "interval", "s"),
        Column("p (Holm)", "p", "s"),
        Column("seeds", "num_seeds", "d"),
        Column("outcome", "outcome"),
    ]
    return columns, pd.DataFrame(lines)


# -- probes ----------------------------------------------------------------------------------------


def _spans(report: Report, split: str) -> list[int]:
    """Return every span with answers from some run, ascending."""
    found: set[int] = set()
    for run in report.runs:
        found |= set(run.probes.get("answers", {}).get(split, {}).get("span", ()))
    return sorted(found)
