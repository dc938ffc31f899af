"""The caption and the summary of a table: its runs, and the order of its rows."""

import itertools

import pandas as pd
from scipy import stats

from rope_exp.comparable import Row
from rope_exp.notes.runs import spell_seeds
from rope_exp.report import ON_OTHER_ROW, Part, Report, main_table, provisional
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


# What the page says of rows by their verdict; "equivalent" needs the margin.
_SAYS = {
    "better": "shown to be better",
    "equivalent": "shown to be equal within {margin}",
    "open": "not distinguished (open)",
    "worse": "shown to be worse",
}


def answer(report: Report) -> list[str]:
    """Say in words what is shown of each row against the reference; without ranks and p-values."""
    judged = report.decided
    if not judged or not ranked_rows(report):
        return [_order_text(report)]

    margin = f"{MARGIN:g} {report.margin_unit}"
    shown = []
    for verdict, says in _SAYS.items():
        names = []
        for label, row in report.rows.items():
            pair = judged.get(label)
            if pair is not None and ON_OTHER_ROW[pair["verdict"]] == verdict:
                names.append(" ".join(filter(None, [row.name, provisional(pair)])))
        if names:
            verb = "is" if len(names) == 1 else "are"
            shown.append(f"{_listed(names)} {verb} {says.format(margin=margin)}")
    counts = span([pair["num_seeds"] for pair in judged.values()], "d")
    means = [row.name for row in ranked_rows(report)]
    return [
        f"Against {report.reference.name}, over {counts} seeds: {'; '.join(shown)}. "
        f"{means[0]} has the best mean loss, {means[-1]} the worst."
    ]


def _listed(names: list[str]) -> str:
    """Return names as a list in a sentence: `A, B and C`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def summary(report: Report) -> list[str]:
    """Summarize the order of the rows, and its agreement with the published one."""
    agreement = _tau(report) if ranked_rows(report) else ""
    return [_order_text(report) + agreement]


def _order_text(report: Report) -> str:
    """Return the order of the rows and how to read it, or why there is none."""
    trained = {label: line for label, line in report.lines.items() if line["num_seeds"]}
    means = [f"{report.rows[row].name} ({trained[row]['loss_mean']:.4f})" for row in trained]
    if len(trained) < 2:
        return f"Nothing to compare. Rows with a loss: {', '.join(means) or 'none'}."
    num_pairs = len(report.pairs["all"])
    if not ranked_rows(report):
        tested = " Pairs are tested over their shared seeds." if num_pairs else ""
        return f"Rows share too few seeds for an order.{tested}"

    counts = [line["num_seeds"] for line in trained.values() if line["rank"]]
    if max(counts) == 1:
        return f"One seed: no difference can be tested. Best: {means[0]}; worst: {means[-1]}."
    if not num_pairs:
        return "No two rows share two seeds, so nothing can be tested."

    ordered = order(report)
    margin = f"{MARGIN:g} {report.margin_unit}"
    verb = "means" if "≈" in ordered else "would mean"
    signs = f'">" means better, "?" open; "≈" {verb} shown to differ by less than {margin}'
    if "<" in ordered:
        signs += '; "<" means worse over the shared seeds'
    together = f" All {num_pairs} pairs are tested together." if num_pairs > 1 else ""
    return f"{ordered} ({span(counts, 'd')} seeds). {signs}.{together}"


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
REPORT = Part(order=-2, answer=answer, caption=caption, summary=summary, terminal=terminal)
