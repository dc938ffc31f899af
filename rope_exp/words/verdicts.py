"""Notes on verdicts: the published source, the reference, and the tests.

They claim no more than the runs support: a difference is reported only if the test of
docs/paper/protocol.md finds it.
"""

from rope_exp.report import Report, is_always_paired
from rope_exp.table import spell_p
from rope_exp.words._order import order, ranked_rows

# Before the notes of probes.
ORDER = -1


def notes(report: Report) -> list[str]:
    """Explain the sources of numbers, and how verdicts were reached."""
    said = []
    if "," in report.groups and report.pairs:
        said.append(
            "Runs come from several groups. For those of one group, the table of that group "
            "decides: here more runs or pairs are tested together."
        )
    if theirs := report.published:
        if theirs.order:
            said.append(f'Published order: {theirs.order} (">" is better).')
        said.append(
            "Ranks are not tested. Ours rank the rows with a loss in this table; the published "
            f"ones rank all {len(theirs.losses)} published rows. Source: {theirs.cited}."
        )
    elif report.source:
        said.append(f"Published claim about such rows, without numbers: {report.source.source}.")
    return said + terminal(report) + _test_notes(report) + _alone(report)


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
    look = ""
    if noise.p_equal is not None:
        look = f"; equal noise across rows: p {spell_p(noise.p_equal, '= ')}"
    how = "pooled t test"
    protocol = "docs/paper/protocol.md"
    if is_always_paired(report.runs):
        how = "paired t test"
        protocol = "docs/paper/protocol-2.md"
    elif noise.is_paired:
        how = "paired t test, because rows look unequally noisy; no second interval is printed"
    elif not report.is_pooled:
        how = "paired t test of the only pair"
    said = [
        f"Noise: residual SD {noise.deviation:.4f} {report.margin_unit} "
        f"({noise.df} degrees of freedom{look}). Test: {how} ({protocol})."
    ]
    if report.against:
        contrasts = "contrast" if len(report.against) == 1 else "contrasts"
        said.append(
            "Intervals are not adjusted. Verdicts are adjusted by Holm over the "
            f"{len(report.against)} {contrasts} with {report.reference.name}, separately for "
            "difference and equivalence. If an interval excludes 0 but the verdict is open, the "
            "adjusted interval (Bonferroni) follows. The p of an equivalent row is from the "
            "equivalence test."
        )
    decided = [label for label in report.decided if report.decided[label] != report.against[label]]
    if decided:
        names = ", ".join(report.rows[label].name for label in decided)
        said.append(f"{names}: p and verdict are of the published relations, the primary family.")
    return said


def _alone(report: Report) -> list[str]:
    """Report the results of the paired test, in case rows are unequally noisy after all."""
    if not report.is_pooled or len(ranked_rows(report)) < 2:
        return []
    alone = report.alone
    said = f"The paired t test, without pooling, gives {order(alone)}."
    changed = {
        f"{report.rows[after['a']].name} {after['published']} "
        f"{report.rows[after['b']].name}": after["outcome"]
        for before, after in zip(report.relations, alone.relations, strict=True)
        if before["outcome"] != after["outcome"]
    }
    if changed:
        told = ", ".join(f"{relation} is {outcome}" for relation, outcome in changed.items())
        said += f" Published relations with another outcome: {told}."
    elif report.relations:
        said += " The published relations have the same outcomes."

    marked = set(changed.values())
    for label, own in alone.decided.items():
        if own["verdict"] != report.decided[label]["verdict"]:
            marked.add(own["verdict"])
    if not marked:
        return [said]
    word = "open" if marked <= {"open"} else "another verdict"
    return [said, f"†: {word} in the paired t test (Holm)."]
