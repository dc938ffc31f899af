"""The caption and the summary of a table: its runs, and the order of its rows."""

import itertools

import pandas as pd
from scipy import stats

from rope_exp.comparable import Row
from rope_exp.notes.runs import spell_seeds
from rope_exp.report import Part, Report, main_table
from rope_exp.stats import MARGIN
from rope_exp.tables import span, spell_p

# The columns for which a terminal has no room.
_LEFT_OUT = (
    "rotates",
    "perplexity",
    "bits_per_byte",
    "p",
    "published_loss",
    "rank",
    "published_rank",
)


def caption(report: Report) -> list[str]:
    """Describe the runs: groups, seeds, parameters, corpus and budget."""
    rows = f"{len(report.rows)} rows by {', '.join(report.keys)}"
    if report.of_variants:
        rows = "1 variant" if len(report.rows) == 1 else f"{len(report.rows)} variants"
    params = span([run.result["params"] for run in report.runs if run.result], ",")
    tokens = span([run.config.train.num_tokens for run in report.runs], ",")
    # Generated data have no size.
    sized = [run for run in report.runs if "tokens" in run.env.get("corpus", {})]
    epochs = [run.config.train.num_tokens / run.env["corpus"]["tokens"]["train"] for run in sized]
    passes = f", {span(epochs, '.3g')} epochs" if epochs else ""
    corpora = dict.fromkeys(str(run.config.data.name) for run in report.runs)
    return [
        f"Group {report.groups}: {rows}, {spell_seeds(run.config.seed for run in report.runs)}; "
        f"{params or 'unknown'} parameters; corpus {' or '.join(corpora)}; "
        f"{tokens} tokens per run{passes}. "
        f"Losses are validation losses in {report.unit}; "
        f"Δ is the mean within-seed difference from {report.reference.name}."
    ]


def summary(report: Report) -> list[str]:
    """Summarize the order of the rows."""
    trained = {label: line for label, line in report.lines.items() if line["num_seeds"]}
    means = [f"{report.rows[row].name} ({trained[row]['loss_mean']:.4f})" for row in trained]
    if len(trained) < 2:
        return [f"Nothing to compare. Rows with a loss: {', '.join(means) or 'none'}."]
    num_pairs = len(report.pairs["all"])
    if not ranked_rows(report):
        tested = " Pairs are tested over their shared seeds." if num_pairs else ""
        return [f"Rows share too few seeds for an order.{tested}"]

    agreement = _tau(report)
    counts = [line["num_seeds"] for line in trained.values() if line["rank"]]
    if max(counts) == 1:
        ends = f"Best: {means[0]}; worst: {means[-1]}."
        return [f"One seed: no difference can be tested. {ends}{agreement}"]
    if not num_pairs:
        return [f"No two rows share two seeds, so nothing can be tested.{agreement}"]

    ordered = order(report)
    margin = f"{MARGIN:g} {report.margin_unit}"
    verb = "means" if "≈" in ordered else "would mean"
    signs = f'">" means better, "?" open; "≈" {verb} shown to differ by less than {margin}'
    if "<" in ordered:
        signs += '; "<" means worse over the shared seeds'
    together = f" All {num_pairs} pairs are tested together." if num_pairs > 1 else ""
    return [f"{ordered} ({span(counts, 'd')} seeds). {signs}.{together}{agreement}"]


def terminal(report: Report) -> list[str]:
    """Return aligned columns, without those that a terminal has no room for, and the summary."""
    headings, *lines = main_table(report).without(*_LEFT_OUT).cells
    table = pd.DataFrame(lines, columns=headings).to_string(index=False)
    return [f"{table}\n", *summary(report)]


def ranked_rows(report: Report) -> list[Row]:
    """Return the rows that have a rank, best first."""
    return [row for label, row in report.rows.items() if report.lines[label]["rank"]]


def order(report: Report) -> str:
    """Return the order of the means, with the sign of the test between neighbours."""
    signs = report.pairs["all"].set_index(["a", "b"])["sign"]
    ranked = ranked_rows(report)
    text = ranked[0].name
    for first, second in itertools.pairwise(ranked):
        text += f" {signs.get((first.label, second.label), '?')} {second.name}"
    return text


def _tau(report: Report) -> str:
    """Report the agreement of our order with the published one; empty below three rows."""
    theirs = report.source.losses
    ranks = {row: line["rank"] for row, line in report.lines.items() if line["rank"]}
    both = [row for row in ranks if row in theirs]
    # For two rows, it would be only a sign.
    if len(both) < 3:
        return ""
    test = stats.kendalltau([ranks[row] for row in both], [theirs[row] for row in both])
    tau = f"{test.statistic:.3f} (n = {len(both)}, p {spell_p(test.pvalue, '= ')})"
    return f" Kendall's tau-b against the published losses is {tau}."


# On a terminal, above the warnings.
REPORT = Part(order=-2, caption=caption, summary=summary, terminal=terminal)
