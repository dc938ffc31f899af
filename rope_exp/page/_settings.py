"""The settings of the page: their names and order, and the parts of each.

A setting is one table of a campaign: its rows share corpus, size, tokens and everything else that
does not distinguish them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rope_exp.published import REFERENCE
from rope_exp.report import (
    SITES_OF,
    WORDS,
    Column,
    Report,
    Table,
    interval,
    parts,
    setting_name,
    spell_p,
)

# A verdict on (reference, row) as a phrase about the row.
_PHRASES = {
    "better": "is worse than",
    "worse": "is better than",
    "equivalent": "is equivalent to",
    "open": "is not distinguished from",
}
# Of these probes, the first with a table is shown.
_ANSWERS = ("answers", "fit")


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


def answers(report: Report) -> str:
    """Return the table of answers on generated data in Markdown; empty without."""
    functions = parts("tables", "words", "probes")
    told = [text for name in _ANSWERS if name in functions for text in functions[name](report)]
    return next((text for text in told if text.startswith("| ")), "")


def answer(report: Report) -> str:
    """Describe the outcomes of the published relations; without any, the best row's difference.

    The published relations are the primary family of every protocol.
    """
    if len(report.relations) > 1:
        return _outcomes(report)
    reference = report.reference.name
    for label, judged in report.decided.items():
        p = spell_p(judged["p_adjusted"], "= ")
        return (
            f"{report.rows[label].name} {_PHRASES[judged['verdict']]} {reference}: its loss minus "
            f"{reference}’s is {judged['delta']:+.4f} {report.unit} (95 % interval "
            f"{interval(judged['delta_ci_low'], judged['delta_ci_high'])}; p {p}, "
            f"adjusted by Holm; {judged['num_seeds']} seeds)."
        )
    return f"No difference from {reference} has been tested yet."


def _outcomes(report: Report) -> str:
    """Name the published relations by outcome."""
    named: dict[str, list[str]] = {}
    for relation in report.relations:
        a, b = (report.rows[relation[key]].name.removesuffix("-RoPE") for key in ("a", "b"))
        told = f"{a} {relation['published']} {b}"
        named.setdefault(relation["outcome"], []).append(told)
    # Confirmed, contradicted, open.
    counts = [f"{len(named[each])} {each} ({', '.join(named[each])})" for each in sorted(named)]
    return f"Of {len(report.relations)} published relations: {'; '.join(counts)}."


# -- all settings ----------------------------------------------------------------------------------


def at_a_glance(settings: Sequence[Setting]) -> dict[str, Any]:
    """Return the difference of each subset from QK-RoPE in every setting, with its verdict.

    Returns:
        The table, and the settings' places, to which its lines link.
    """
    shown = [
        setting
        for setting in settings
        if setting.report.reference.label == REFERENCE and setting.report.reference.losses
    ]
    lines = [{"setting": setting.name, **_differences(setting.report)} for setting in shown]
    names = dict.fromkeys(name for line in lines for name in line)
    columns = [Column(name, name, "" if name == "setting" else "s") for name in names]
    return {
        "table": Table(columns, pd.DataFrame(lines)).markdown(),
        "places": [setting.place for setting in shown],
    }


def _differences(report: Report) -> dict[str, str]:
    """Return the difference of each subset from the reference, and its verdict, by its name."""
    found = {}
    for label, line in report.lines.items():
        delta = line["delta"]
        if delta is not None and label != REFERENCE and label in SITES_OF:
            judged = report.decided.get(label)
            word = WORDS[judged["verdict"]] if judged else ""
            found[line["name"]] = f"{delta:+.4f} {word}".rstrip()
    return found
