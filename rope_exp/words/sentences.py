"""The sentences around the table: caption, summary and notes.

They claim no more than the runs support: a difference is reported only if the test of
docs/protocol.md finds it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rope_exp import provenance
from rope_exp.comparable import differing_surroundings, mixed_blocks
from rope_exp.content import Line, Report, by_own_deviation, interval, span
from rope_exp.errors import show
from rope_exp.published import Published
from rope_exp.runs import Run
from rope_exp.stats import MARGIN, Judged, kendall_tau
from rope_exp.words.probed import drift_notes, shift_notes

# Title of the interval of the paired t test, beside the pooled one.
OWN = "95 % interval, paired"


def caption(report: Report) -> str:
    """Describe the runs: groups, seeds, parameters, corpus, budget."""
    rows = f"{len(report.rows)} rows by {', '.join(report.keys)}"
    if report.of_variants:
        rows = "1 variant" if len(report.rows) == 1 else f"{len(report.rows)} variants"
    params = span([run.result["params"] for run in report.runs if run.result], ",")
    tokens = span([run.config.train.num_tokens for run in report.runs], ",")
    epochs = span([run.epochs for run in report.runs if run.epochs], ".3g")
    passes = f", {epochs} epochs" if epochs else ""
    corpora = dict.fromkeys(str(run.config.data.name) for run in report.runs)
    return (
        f"Group {report.groups}: {rows}, {_seeds(run.config.seed for run in report.runs)}; "
        f"{params or 'unknown'} parameters; corpus {' or '.join(corpora)}; "
        f"{tokens} tokens per run{passes}. "
        f"Losses are validation losses in {report.unit}; "
        f"Δ is the mean within-seed difference from {report.reference.name}."
    )


def summary(report: Report) -> str:
    """Summarize the order of the rows, without claims that the runs do not support."""
    trained = [row for row in report.rows.values() if row.losses]
    means = [f"{row.name} ({row.ours.loss_mean:.4f})" for row in trained]
    if len(trained) < 2:
        return f"Nothing to compare. Rows with a loss: {', '.join(means) or 'none'}."
    ranked = [row for row in trained if row.ours.rank]
    if not ranked:
        tested = " Pairs are tested over their shared seeds." if report.pairs else ""
        return f"Rows share too few seeds for an order.{tested}"
    agreement = _tau(report, report.published) if report.published else ""

    counts = [row.ours.num_seeds for row in ranked]
    if max(counts) == 1:
        return (
            f"One seed: no difference can be tested. Best: {means[0]}; worst: {means[-1]}."
            f"{agreement}"
        )

    if not report.pairs:
        return f"No two rows share two seeds, so nothing can be tested.{agreement}"
    order = _order(report, ranked)
    margin = f"{MARGIN:g} {report.margin_unit}"
    verb = "means" if "≈" in order else "would mean"
    signs = f'">" means better, "?" open; "≈" {verb} shown to differ by less than {margin}'
    if "<" in order:
        signs += '; "<" means worse over the shared seeds'
    num_pairs = len(report.pairs)
    together = f" All {num_pairs} pairs are tested together." if num_pairs > 1 else ""
    return f"{order} ({span(counts, 'd')} seeds). {signs}.{together}{agreement}"


def _order(report: Report, ranked: Sequence[Line]) -> str:
    """Return the order of the means, with the sign of the test between neighbours."""
    order = ranked[0].name
    for first, second in itertools.pairwise(ranked):
        pair = report.pairs.get((first.label, second.label))
        order += f" {pair.sign if pair else '?'} {second.name}"
    return order


def _tau(report: Report, published: Published) -> str:
    """Report the agreement of our order with the published one; empty below three rows."""
    ranks = {row.label: row.ours.rank for row in report.rows.values() if row.ours.rank}
    tau, p, count = kendall_tau(ranks, published.losses)
    if count < 3:
        return ""
    if math.isnan(tau):
        return f" Kendall's tau-b against the published losses is undefined (n = {count})."
    told = f"{tau:.3f} (n = {count}, p {spell_p(p, sign=True)})"
    return f" Kendall's tau-b against the published losses is {told}."


def notes(report: Report) -> list[str]:
    """Explain the numbers: sources, tests, runs without a loss, unequal seeds, surroundings."""
    said = []
    if "," in report.groups and report.pairs:
        said.append(
            "Runs come from several groups. For those of one group, the table of that group "
            "decides: here more runs or pairs are tested together."
        )
    if report.published:
        theirs = report.published
        if theirs.order:
            said.append(f'Published order: {theirs.order} (">" is better).')
        said.append(
            "Ranks are not tested. Ours rank the rows with a loss in this table; the published "
            f"ones rank all {len(theirs.losses)} published rows. Source: {theirs.cited}."
        )
    if report.source and not report.published:
        said.append(f"Published claim about such rows, without numbers: {report.source.source}.")
    said += reference_notes(report)
    said += _test_notes(report)
    said += drift_notes(report) + shift_notes(report)

    for row in report.rows.values():
        for run in row.runs:
            said += _run_notes(row.name, run)
    said += _seed_notes(report)

    mixed = mixed_blocks(report.runs)
    for seed, differing in mixed.items():
        for key, values in differing.items():
            said.append(f"Runs of seed {seed} differ in {key}: {', '.join(values)}.")
    for key, values in differing_surroundings(report.runs).items():
        if not any(key in differing for differing in mixed.values()):
            said.append(f"Seeds differ in {key}: {', '.join(values)}.")
    return said + left_out_notes(report)


def reference_notes(report: Report) -> list[str]:
    """Say that there are no differences if the reference has no finished run."""
    if report.reference.losses:
        return []
    # The reference of a campaign's tables cannot be changed.
    other = "" if any(run.row for run in report.runs) else "; --reference selects another row"
    return [f"{report.reference.name} has no finished run here, so there is no Δ{other}."]


def left_out_notes(report: Report) -> list[str]:
    """Name the folders that were left out."""
    return [f"{folder} was left out: {reason}." for folder, reason in report.left_out.items()]


def code_notes(report: Report) -> list[str]:
    """Name the rows that were trained with other code than most runs."""
    codes = {}
    for row in report.rows.values():
        found = [run.env["git"] for run in row.runs if run.env.get("git")]
        codes[row.name] = [provenance.spelled(git) for git in found]
    counts = Counter(code for of_row in codes.values() for code in of_row)
    if len(counts) < 2:
        return []

    [(common, _)] = counts.most_common(1)
    said = []
    for name, of_row in codes.items():
        others = sorted({code for code in of_row if code != common})
        if others:
            said.append(f"{name}: trained at commit {', '.join(others)}; most runs at {common}.")
    if any(code.endswith("+") for code in counts):
        said.append("+: the code had uncommitted changes.")
    return said


# -- one run ---------------------------------------------------------------------------------------


def _run_notes(row: str, run: Run) -> list[str]:
    name = f"{row}, seed {run.config.seed}"
    said = [f"{name}: {mark} ({run.where})." for mark in run.env.get("marks", [])]
    most = max(run.probes.get("floors", {}).get("share", [0.0]))
    if most:
        said.append(
            f"{name}: at most {most:.3%} of a layer's denominators are floored at "
            f"attn.eps={show(run.config.numeric_value('attn.eps'))} ({run.where})."
        )
    if run.status != "finished":
        last = [{"step": 0}, *run.metrics][-1]
        steps = run.result.get("steps", last["step"])
        num_steps = run.config.train.num_steps
        said.append(f"{name}: {run.status} after {steps} of {num_steps} steps ({run.where}).")
    return said


# -- words -----------------------------------------------------------------------------------------


def _test_notes(report: Report) -> list[str]:
    """Explain the noise behind the tests, and how to read their columns."""
    noise = report.noise
    if noise is None:
        return []
    look = ""
    if noise.p_equal is not None:
        look = f"; equal noise across rows: p {spell_p(noise.p_equal, sign=True)}"
    how = "pooled t test"
    protocol = "docs/protocol.md"
    if noise.method == "paired":
        how = "paired t test, because rows look unequally noisy; no second interval is printed"
    elif not report.is_pooled:
        how = "paired t test of the only pair"
    if by_own_deviation(report.runs):
        how = "paired t test"
        protocol = "docs/protocol-2.md"
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
    return said + _alone(report)


def _alone(report: Report) -> list[str]:
    """Report the results of the paired test, in case rows are unequally noisy after all."""
    ranked = [row for row in report.rows.values() if row.ours.rank]
    if not report.is_pooled or len(ranked) < 2:
        return []
    alone = report.alone
    said = f"The paired t test, without pooling, gives {_order(alone, ranked)}."
    changed = {
        f"{report.rows[after.judged.a].name} {after.published} "
        f"{report.rows[after.judged.b].name}": after.outcome
        for before, after in zip(report.relations, alone.relations, strict=True)
        if before.outcome != after.outcome
    }
    if changed:
        told = ", ".join(f"{relation} is {outcome}" for relation, outcome in changed.items())
        said += f" Published relations with another outcome: {told}."
    elif report.relations:
        said += " The published relations have the same outcomes."

    marked = set(changed.values())
    for label, own in alone.decided.items():
        if own.verdict != report.decided[label].verdict:
            marked.add(own.verdict)
    if not marked:
        return [said]
    word = "open" if marked <= {"open"} else "another verdict"
    return [said, f"†: {word} in the paired t test (Holm)."]


def told_interval(line: Mapping[str, Any]) -> str:
    """Return a contrast's 95 % interval as text, given a line of a frame.

    If it excludes 0 but the verdict is open, the interval for the whole family follows.
    """
    low, high = line["delta_ci_low"], line["delta_ci_high"]
    said = interval(low, high)
    if said and low * high > 0 and line.get("word") == "open":
        said += f" (adjusted: {interval(line['wide_low'], line['wide_high'])})"
    return said


def interval_alone(line: Mapping[str, Any]) -> str:
    """Return the interval of the paired t test as text, given a line of a frame."""
    return interval(line["delta_ci_low_alone"], line["delta_ci_high_alone"])


def p_of(judged: Judged) -> str:
    """Return the adjusted p-value of the test that gave the verdict, as text."""
    is_equivalent = judged.verdict == "equivalent"
    return spell_p(judged.p_equivalent if is_equivalent else judged.p_adjusted)


def spell_p(p: float, *, sign: bool = False) -> str:
    """Return a p-value as text; with `sign`, in the form that follows the letter p."""
    if p < 0.0001:
        return "< 0.0001"
    return f"= {p:.4f}" if sign else f"{p:.4f}"


def _seed_notes(report: Report) -> list[str]:
    """Name rows with other seeds than the rest: means are not comparable then; Δ and ranks are."""
    by_seeds: dict[str, list[str]] = {}
    for row in report.rows.values():
        if has_other_seeds(report, row):
            mine = _seeds(row.losses)
            shared = _seeds(row.losses.keys() & report.reference.losses.keys())
            words = f"mean and Δ over {mine}"
            if mine != shared:
                words = f"mean over {mine}, Δ over {shared}"
            by_seeds.setdefault(words, []).append(row.name)

    said = [f"‡ {', '.join(names)}: {words}." for words, names in by_seeds.items()]
    if said and any(row.ours.rank for row in report.rows.values()):
        said.append(
            "Ranks use means adjusted for missing seeds, from a least-squares fit of "
            "loss = seed + row."
        )
    return said


def has_other_seeds(report: Report, row: Line) -> bool:
    """Return whether a row's mean is over other seeds than the table's."""
    everywhere = {run.config.seed for run in report.runs if run.status == "finished"}
    mine = row.losses.keys()
    return bool(mine) and not mine == everywhere == mine & report.reference.losses.keys()


def _seeds(seeds: Iterable[int]) -> str:
    found = sorted(set(seeds))
    if len(found) < 2:
        return f"seed {found[0]}" if found else "no seed"
    is_range = len(found) > 2 and found[-1] - found[0] == len(found) - 1
    return f"seeds {span(found) if is_range else ', '.join(map(str, found))}"
