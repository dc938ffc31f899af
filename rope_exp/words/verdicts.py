"""Notes on verdicts: the published source, the reference, and the tests; published relations."""

from typing import Any

import pandas as pd

from rope_exp.report import OWN, Column, Report, Table, adjusted_p, interval, number, span, spell_p
from rope_exp.stats import MOST_SEEDS, ROOM, SEEDS_NEEDED, SIGNS, Pair, outcome
from rope_exp.words.summary import order, ranked_rows

ORDER = -1  # before the notes and the tables of probes


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
    if report.is_always_paired:
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
        mark = "" if pair["outcome"] == pair["outcome_alone"] else " †"
        settling = f"; {_settling(pair)}" if pair["outcome"] == "open" else ""
        line = {
            "published": f" {pair['published']} ".join(names),
            "ours": f" {pair['sign']} ".join(names),
            "Δ": number(pair["delta"], "+.4f"),
            "95 % interval": interval(pair["delta_ci_low"], pair["delta_ci_high"]),
        }
        if report.is_pooled:
            line[OWN] = interval(pair["delta_ci_low_alone"], pair["delta_ci_high_alone"])
        if pair["family"] > 1:
            wide = interval(pair["delta_wide_low"], pair["delta_wide_high"])
            line[f"for all {pair['family']} (Bonferroni)"] = wide
        line |= {
            "p (Holm)": adjusted_p(pair),
            "seeds": str(pair["num_seeds"]),
            "outcome at this setting": f"{pair['outcome']}{mark}{settling}",
        }
        lines.append(line)
    if not lines:
        return []

    table = pd.DataFrame(lines)
    forms = dict.fromkeys(("published", "ours", "outcome at this setting"), "")
    columns = [Column(name, name, forms.get(name, "s")) for name in map(str, table)]
    return [Table(columns, table).markdown()]


def outcomes(report: Report) -> list[Pair]:
    """Return the judged published relations, with `published`, `outcome` and `outcome_alone`."""
    lines = []
    pairs: Any = report.pairs["published"].to_dict("records")
    for pair in pairs:
        a, b = pair["a"], pair["b"]
        sign = report.source.signs[a, b]
        # If nearly all examples like those in training are solved, neither losses nor matches
        # show which is better (docs/paper/protocol.md, section 8).
        runs = [*report.rows[a].runs, *report.rows[b].runs]
        answers = filter(None, (run.probes.get("answers", {}).get("test") for run in runs))
        counts = [(sum(answer["count"]), sum(answer["right"])) for answer in answers]
        shares = [right / count for count, right in counts if count]
        own = {key.removesuffix("_alone"): pair[key] for key in pair if key.endswith("_alone")}
        words = [outcome(judged, sign) for judged in (pair, own)]
        if shares and min(shares) >= 1 - ROOM:
            words = ["open; the task is too easy"] * 2
        lines.append(pair | {"published": sign, "outcome": words[0], "outcome_alone": words[1]})
    return lines


def _settling(pair: Pair) -> str:
    """Say how an open published relation could be settled."""
    if pair["verdict"] != "open":
        return "a difference is shown, but not whether it exceeds the margin"
    present = pair["num_seeds"]
    low, high = (pair[key] for key in SEEDS_NEEDED)
    if pd.isna(low):
        return f"settling it needs more than {MOST_SEEDS} seeds"
    count = f"{low - present} to more than {MOST_SEEDS - present}"
    if not pd.isna(high):
        count = span((low - present, high - present))
    seeds = f"{count} more {'seed' if count == '1' else 'seeds'} would settle it in 4 of 5 cases"
    if pair["published"] == SIGNS["equivalent"]:
        return f"{seeds}; a difference may then still be below the margin"
    return seeds
