"""Notes on verdicts: the published source, the reference, and the tests."""

from typing import Any

from rope_exp.report import Report, is_always_paired, spell_p
from rope_exp.words.relations import outcomes
from rope_exp.words.summary import order, ranked_rows

# Before the notes of probes.
ORDER = -1


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
    return sentences + terminal(report) + _test_notes(report) + _alone(report)


def terminal(report: Report) -> list[str]:
    """Say that there are no differences if the reference has no finished run."""
    if report.reference.losses:
        return []
    # The reference of a campaign's tables cannot be changed.
    other = "" if any(run.row for run in report.runs) else "; --reference selects another row"
    return [f"{report.reference.name} has no finished run here, so there is no Δ{other}."]


def _test_notes(report: Report) -> list[str]:
    """Explain the noise behind the tests, and how to read their columns."""
    noise = report.noise
    if noise is None:
        return []
    equal = ""
    if noise.p_equal is not None:
        equal = f"; equal noise across rows: p {spell_p(noise.p_equal, '= ')}"
    test, protocol = "pooled t test", "docs/paper/protocol.md"
    if is_always_paired(report.runs):
        test, protocol = "paired t test", "docs/paper/protocol-2.md"
    elif noise.is_paired:
        test = "paired t test, because rows look unequally noisy; no second interval is printed"
    elif not report.is_pooled:
        test = "paired t test of the only pair"
    sentences = [
        f"Noise: residual SD {noise.deviation:.4f} {report.margin_unit} "
        f"({noise.df} degrees of freedom{equal}). Test: {test} ({protocol})."
    ]
    if count := len(report.pairs["reference"]):
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
    primary = [
        label
        for label, own in judged.items()
        if any(report.decided[label][key] != own[key] for key in shown)
    ]
    if primary:
        names = ", ".join(report.rows[label].name for label in primary)
        sentences.append(
            f"{names}: p and verdict are of the published relations, the primary family."
        )
    return sentences


def _alone(report: Report) -> list[str]:
    """Report the results of the paired test, in case rows are unequally noisy after all."""
    if not report.is_pooled or len(ranked_rows(report)) < 2:
        return []
    sentence = f"The paired t test, without pooling, gives {order(report, 'sign_alone')}."
    relations = outcomes(report)
    changed = []
    marked = set()
    for pair in relations:
        if pair["outcome"] != pair["outcome_alone"]:
            names = f" {pair['published']} ".join(report.rows[pair[key]].name for key in ("a", "b"))
            changed.append(f"{names} is {pair['outcome_alone']}")
            marked.add(pair["outcome_alone"])
    if changed:
        sentence += f" Published relations with another outcome: {', '.join(changed)}."
    elif relations:
        sentence += " The published relations have the same outcomes."

    for pair in report.decided.values():
        if pair["verdict_alone"] != pair["verdict"]:
            marked.add(pair["verdict_alone"])
    if not marked:
        return [sentence]
    word = "open" if marked <= {"open"} else "another verdict"
    return [sentence, f"†: {word} in the paired t test (Holm)."]
