"""Notes on verdicts: the published source, the reference, and the tests; published relations."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from rope_exp.folder import Run
from rope_exp.report import PROVISIONAL, Part, Report, adjusted_p, provisional
from rope_exp.stats import FULL_SEEDS, MOST_SEEDS, ROOM, SEEDS_NEEDED, SIGNS, Pair, outcome
from rope_exp.tables import Column, Table, interval, number


def notes(report: Report) -> list[str]:
    """Explain the sources of numbers, and how verdicts were reached."""
    sentences = []
    source = report.source
    if "," in report.groups and len(report.pairs["all"]):
        sentences.append(
            "Runs come from several groups. For those of one group, the table of that group "
            "decides: here more runs or pairs are tested together."
        )
    if source.order:
        sentences.append(f'Published order: {source.order} (">" is better).')
    if source.losses:
        sentences.append(
            "Ranks are not tested. Ours rank the rows with a loss in this table; the published "
            f"ones rank all {len(source.losses)} published rows. "
            f"Source: {source.source} ({source.setting})."
        )
    elif source.source:
        sentences.append(f"Published claim about such rows, without numbers: {source.source}.")
    return sentences + terminal(report) + _test_notes(report)


def terminal(report: Report) -> list[str]:
    """Say that there are no differences if the reference has no finished run."""
    if report.reference.losses:
        return []
    # The reference of a campaign's tables cannot be changed.
    other = "" if any(run.row for run in report.runs) else "; --reference selects another row"
    return [f"{report.reference.name} has no finished run here, so there is no Δ{other}."]


def _test_notes(report: Report) -> list[str]:
    """Explain the test, and how to read its columns."""
    if not report.is_tested:
        return []
    sentences = ["Test: paired t test of each pair (docs/comparing.md)."]
    judged_pairs = [*report.decided.values(), *outcomes(report)]
    if any(map(provisional, judged_pairs)):
        sentences.append(
            f"{PROVISIONAL}: by fewer than {FULL_SEEDS} seeds, with which the test errs more often "
            "than it says if some runs lag."
        )
    count = len(report.pairs["reference"])
    if count:
        contrasts = "contrast" if count == 1 else "contrasts"
        sentences.append(
            "Intervals are not adjusted. Verdicts are adjusted by Holm over the "
            f"{count} {contrasts} with {report.reference.name}, separately for "
            "difference and equivalence. If an interval excludes 0 but the verdict is open, the "
            "adjusted interval (Bonferroni) follows. The p of an equivalent row is from the "
            "equivalence test."
        )
    shown = ["family", "p_adjusted", "p_equivalent", "verdict"]
    judged: Any = report.pairs["reference"].set_index("b")[shown].to_dict("index")
    primary = []
    for label, pair in judged.items():
        verdict_pair = report.decided[label]
        if any(verdict_pair[key] != pair[key] for key in shown):
            primary.append(label)
    if primary:
        names = ", ".join(report.rows[label].name for label in primary)
        sentences.append(
            f"{names}: p and verdict are of the published relations, the primary family."
        )
    return sentences


def tables(report: Report) -> list[str]:
    """Return a table of the published relations that this report decides."""
    title = "Published relations (Δ: the second variant's loss minus the first's):"
    table = relations(report)
    return [title, *table] if table else []


def relations(report: Report) -> list[str]:
    """Return a line for each published relation, as Markdown, or nothing without any."""
    lines = []
    for pair in outcomes(report):
        names = [report.rows[pair[key]].name for key in ("a", "b")]
        text = pair["outcome"]
        if text == "open":
            text += f"; {_settling(pair)}"
        # A difference may be shown, and the relation be open for its size.
        elif not text.startswith("open"):
            text = f"{text} {provisional(pair)}".rstrip()
        line = {
            "published": f" {pair['published']} ".join(names),
            "ours": f" {pair['sign']} ".join(names),
            "Δ": number(pair["delta"], "+.4f"),
            "95 % interval": interval(pair["delta_ci_low"], pair["delta_ci_high"]),
        }
        if pair["family"] > 1:
            wide = interval(pair["delta_wide_low"], pair["delta_wide_high"])
            line[f"for all {pair['family']} (Bonferroni)"] = wide
        line |= {
            "p (Holm)": adjusted_p(pair),
            "seeds": str(pair["num_seeds"]),
            "outcome at this setting": text,
        }
        lines.append(line)
    if not lines:
        return []

    table = pd.DataFrame(lines)
    forms = dict.fromkeys(("published", "ours", "outcome at this setting"), "")
    columns = [Column(name, name, forms.get(name, "s")) for name in map(str, table)]
    return [Table(columns, table).markdown()]


def outcomes(report: Report) -> list[Pair]:
    """Return the judged published relations, with `published` and `outcome`."""
    lines = []
    pairs: Any = report.pairs["published"].to_dict("records")
    for pair in pairs:
        a, b = pair["a"], pair["b"]
        sign = report.source.signs[a, b]
        text = outcome(pair, sign)
        # If nearly all examples like those in training are solved, neither losses nor matches
        # show which is better (paper/protocol.md, section 8).
        shares = _solved([*report.rows[a].runs, *report.rows[b].runs])
        if shares and min(shares) >= 1 - ROOM:
            text = "open; the task is too easy"
        lines.append(pair | {"published": sign, "outcome": text})
    return lines


def _solved(runs: Iterable[Run]) -> list[float]:
    """Return the share of a task's test that each run solves, for runs with such an answer."""
    shares = []
    for run in runs:
        answer = run.probes.get("answers", {}).get("test")
        if answer and sum(answer["count"]):
            shares.append(sum(answer["right"]) / sum(answer["count"]))
    return shares


def _settling(pair: Pair) -> str:
    """Say how an open published relation could be settled."""
    if pair["verdict"] != "open":
        return "a difference is shown, but not whether it exceeds the margin"
    # With the fewer seeds of the low end, few pairs are settled (docs/comparing.md).
    low, high = (pair[key] for key in SEEDS_NEEDED)
    if pd.isna(low):
        return f"settling it needs more than {MOST_SEEDS} seeds"
    if pd.isna(high):
        return f"settling it may need more than {MOST_SEEDS} seeds"

    count = high - pair["num_seeds"]
    noun = "seed" if count == 1 else "seeds"
    seeds = f"{count} more {noun} would settle it in at least 4 of 5 cases"
    if pair["published"] == SIGNS["equivalent"]:
        return f"{seeds}; a difference may then still be below the margin"
    return seeds


# Before the notes and the tables of probes.
REPORT = Part(order=-1, tables=tables, notes=notes, terminal=terminal)
