"""Gains of rows over NoPE, compared with their gains in a campaign of the nine on English."""

from collections.abc import Mapping, Sequence

import pandas as pd

from rope_exp.evidence.changes import Change, compare_noise, find_changes
from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.contrasts import Losses
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report
from rope_exp.report.sentences import spell_p
from rope_exp.report.spelling import markdown_table


def changes_files(report: Report, base: Sequence[Run]) -> dict[str, bytes]:
    """Return changes.md and changes.csv of a level; empty if the campaigns share no row.

    Gains on generated data are never compared with gains on text.

    Args:
        report: the level's report.
        base: the runs of the campaign that it is compared with.
    """
    if not report.of_variants or report.task or not base:
        return {}
    here = {label: row.losses for label, row in report.rows.items()}
    there = {label: row.losses for label, row in comparable(base, ["pe"]).items()}
    changes = find_changes(here, there)
    if not changes:
        return {}
    name = base[0].group
    text = _markdown(changes, report, name) + _noise(here, there, name)
    return {
        "changes.md": text.encode(),
        "changes.csv": _csv(changes, report).encode(),
    }


def _markdown(changes: Sequence[Change], report: Report, base: str) -> str:
    lines = []
    for change in changes:
        judged = change.judged
        interval = None if judged is None else f"{judged.low:+.4f} to {judged.high:+.4f}"
        seeds = change.by_seed
        line = {
            "variant": report.rows[change.label].name,
            "seeds": len(seeds),
            "gain here": f"{change.gain_here:+.4f}",
            f"gain in {base}": f"{change.gain_there:+.4f}",
            "change": f"{change.mean:+.4f}",
            "95 % interval": interval,
            "p (Holm)": None if judged is None else spell_p(judged.p_adjusted),
            "by seed": ", ".join(f"{seed}: {value:+.3f}" for seed, value in seeds.items()),
        }
        lines.append(line)
    num_judged = sum(change.judged is not None for change in changes)
    judged_as = (
        " The change is judged as a contrast with NoPE in the layout of the differences, here "
        f"minus there, seed by row; the family is these {num_judged}."
        if num_judged
        else " Of fewer than two seeds nothing is judged."
    )
    return (
        f"**What variants gain over NoPE in {report.groups}, beside {base}: the loss of NoPE "
        "minus the row's, at the same seeds of both.**\n\n"
        f"{markdown_table(pd.DataFrame(lines))}\n\n"
        f"In {report.unit} here.{judged_as}\n"
    )


def _noise(here: Mapping[str, Losses], there: Mapping[str, Losses], base: str) -> str:
    """Compare the noise of these runs with the same runs of the base."""
    found = compare_noise(here, there)
    if found is None:
        return ""
    ours, theirs, p = found
    return (
        f"\nNoise: over the rows and seeds of both, the residual of seed x row deviates by "
        f"{ours.deviation:.4f} here and by {theirs.deviation:.4f} in {base} ({ours.df} degrees "
        f"of freedom each; p of equal noise, by an F test of the two: {spell_p(p)}).\n"
    )


def _csv(changes: Sequence[Change], report: Report) -> str:
    lines = []
    for change in changes:
        judged = change.judged
        line = {
            "group": report.groups,
            "pe": change.label,
            "num_seeds": len(change.by_seed),
            "gain_here": change.gain_here,
            "gain_there": change.gain_there,
            "change": change.mean,
            "change_ci_low": judged and judged.low,
            "change_ci_high": judged and judged.high,
            "p_holm": judged and judged.p_adjusted,
        }
        lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False, float_format="%.6f")
