"""The settings of the page: their names and order, and the parts of each.

A setting is one table of a campaign: its rows share corpus, size, tokens and everything else that
does not distinguish them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from rope_exp.evidence.published import REFERENCE
from rope_exp.evidence.significance import Verdict
from rope_exp.report.answers import fits, matches
from rope_exp.report.content import Report
from rope_exp.report.looks import parts
from rope_exp.report.sentences import spell_p
from rope_exp.report.spelling import NOTHING, Column, setting_name, sides
from rope_exp.report.tables import WORDS

# A verdict on (reference, row) as a phrase about the row.
_PHRASES: Mapping[Verdict, str] = {
    "better": "is worse than",
    "worse": "is better than",
    "equivalent": "is equivalent to",
    "open": "is not distinguished from",
}


class Cell(NamedTuple):
    """A cell: its text, and a link."""

    text: str
    link: str = ""


class Table(NamedTuple):
    """A table: headings, the alignment of columns as in `spelling.sides`, and lines of cells."""

    headings: list[str]
    sides: str
    lines: list[list[Cell]]


def page_table(columns: Sequence[Column], frame: pd.DataFrame) -> Table:
    """Return columns of a frame as a table of the page."""
    lines = [[Cell(column.spell(line)) for column in columns] for line in frame.to_dict("records")]
    return Table([column.heading for column in columns], sides(columns), lines)


class Setting(NamedTuple):
    """A setting: the folder of its files, its name, and its report."""

    place: str
    name: str
    report: Report


def _beside(place: str) -> str:
    """Return a place in words; the page's own folder, of a group without a campaign, has none."""
    return "" if place == "." else f" ({place})"


def named(tables: Mapping[str, Report]) -> list[Setting]:
    """Return the settings: first the main one, then the others by tokens and name.

    The main setting tests the most published relations, with the most runs.
    """
    settings = [
        Setting(place, setting_name(report.runs[0].config) + _beside(place), report)
        for place, report in tables.items()
    ]
    settings.sort(key=lambda each: (_tokens(each.report), each.name))
    first = max(settings, key=lambda each: _weight(each.report), default=None)
    return sorted(settings, key=lambda each: each is not first)


def _weight(report: Report) -> tuple[int, int]:
    return len(report.relations), len(report.runs)


def _tokens(report: Report) -> int:
    return max(run.config.train.num_tokens for run in report.runs)


# -- the parts of a setting ------------------------------------------------------------------------


def answers(report: Report) -> Table:
    """Return the answers on generated data: exact matches, or else R²; no lines without either."""
    shown, found = matches(report)
    return page_table(*(fits(report) if found.empty else (shown, found)))


def answer(report: Report) -> str:
    """Describe the outcomes of the published relations; without any, the best row's difference.

    The published relations are the primary family of every protocol.
    """
    if len(report.relations) > 1:
        return _outcomes(report)
    reference = report.reference.name
    for label, judged in report.decided.items():
        return (
            f"{report.rows[label].name} {_PHRASES[judged.verdict]} {reference}: its loss minus "
            f"{reference}’s is {judged.delta:+.4f} {report.unit} (95 % interval {judged.low:+.4f} "
            f"to {judged.high:+.4f}; p {spell_p(judged.p_adjusted, sign=True)}, adjusted by Holm; "
            f"{judged.num_seeds} seeds)."
        )
    return f"No difference from {reference} has been tested yet."


def _outcomes(report: Report) -> str:
    """Name the published relations by outcome."""
    named: dict[str, list[str]] = {}
    for relation in report.relations:
        pair = relation.judged
        a, b = (report.rows[label].name.removesuffix("-RoPE") for label in (pair.a, pair.b))
        named.setdefault(relation.outcome, []).append(f"{a} {relation.published} {b}")
    # Confirmed, contradicted, open.
    counts = [f"{len(named[each])} {each} ({', '.join(named[each])})" for each in sorted(named)]
    return f"Of {len(report.relations)} published relations: {'; '.join(counts)}."


# -- all settings ----------------------------------------------------------------------------------


def at_a_glance(settings: Sequence[Setting]) -> Table:
    """Return the difference of each subset from QK-RoPE in every setting, with its verdict."""
    lines = []
    for setting in settings:
        report = setting.report
        if report.reference.label != REFERENCE or not report.reference.losses:
            continue
        line = {"setting": Cell(setting.name, link=f"#{setting.place}")}
        for label, row in report.rows.items():
            delta = row.ours.delta
            if delta is not None and label != REFERENCE and parts(label):
                judged = report.decided.get(label)
                word = WORDS[judged.verdict] if judged else ""
                line[row.name] = Cell(f"{delta:+.4f} {word}".rstrip())
        lines.append(line)

    headings = list(dict.fromkeys(heading for line in lines for heading in line))
    missing = Cell(NOTHING)
    cells = [[line.get(heading, missing) for heading in headings] for line in lines]
    return Table(headings, "<" + ">" * (len(headings) - 1), cells)
