"""The summary of a table: the order of its rows, without claims that the runs do not support."""

import math

from scipy import stats

from rope_exp.report import Report
from rope_exp.stats import MARGIN
from rope_exp.table import span, spell_p
from rope_exp.words._order import order, ranked_rows


def summary(report: Report) -> list[str]:
    """Summarize the order of the rows."""
    return [_summary(report)]


def _summary(report: Report) -> str:
    trained = [line for line in report.lines.values() if line["num_seeds"]]
    means = [f"{line['name']} ({line['loss_mean']:.4f})" for line in trained]
    if len(trained) < 2:
        return f"Nothing to compare. Rows with a loss: {', '.join(means) or 'none'}."
    if not ranked_rows(report):
        tested = " Pairs are tested over their shared seeds." if report.pairs else ""
        return f"Rows share too few seeds for an order.{tested}"

    agreement = _tau(report)
    counts = [line["num_seeds"] for line in trained if line["rank"]]
    if max(counts) == 1:
        return (
            f"One seed: no difference can be tested. Best: {means[0]}; worst: {means[-1]}."
            f"{agreement}"
        )
    if not report.pairs:
        return f"No two rows share two seeds, so nothing can be tested.{agreement}"

    ordered = order(report)
    margin = f"{MARGIN:g} {report.margin_unit}"
    verb = "means" if "≈" in ordered else "would mean"
    signs = f'">" means better, "?" open; "≈" {verb} shown to differ by less than {margin}'
    if "<" in ordered:
        signs += '; "<" means worse over the shared seeds'
    num_pairs = len(report.pairs)
    together = f" All {num_pairs} pairs are tested together." if num_pairs > 1 else ""
    return f"{ordered} ({span(counts, 'd')} seeds). {signs}.{together}{agreement}"


def _tau(report: Report) -> str:
    """Report the agreement of our order with the published one; empty below three rows."""
    if not report.published:
        return ""
    theirs = report.published.losses
    ranks = {label: line["rank"] for label, line in report.lines.items() if line["rank"]}
    both = [label for label in ranks if label in theirs]
    # For two rows, it would be only a sign.
    if len(both) < 3:
        return ""
    test = stats.kendalltau([ranks[label] for label in both], [theirs[label] for label in both])
    told = f"undefined (n = {len(both)})"
    if not math.isnan(test.statistic):
        told = f"{test.statistic:.3f} (n = {len(both)}, p {spell_p(test.pvalue, '= ')})"
    return f" Kendall's tau-b against the published losses is {told}."
