"""Judged pairs of rows: all pairs as pairs.csv, the published relations as a Markdown table."""

import pandas as pd

from rope_exp.evidence.significance import MOST_SEEDS, SIGNS
from rope_exp.report.content import Relation, Report
from rope_exp.report.sentences import OWN, mark_change, spell_interval, spell_p
from rope_exp.report.spelling import markdown_lines


def pairs_table(report: Report) -> str:
    """Return pairs.csv: every pair of rows, judged together; delta is b's loss minus a's.

    The last columns are from the paired t-test, which pools nothing.
    """
    alone = report.alone.pairs
    lines = []
    for pair in report.pairs.values():
        own = alone[pair.a, pair.b]
        lines.append(
            {
                "a": pair.a,
                "sign": pair.sign,
                "b": pair.b,
                "num_seeds": pair.num_seeds,
                "delta": f"{pair.delta:.6f}",
                "delta_ci_low": f"{pair.low:.6f}",
                "delta_ci_high": f"{pair.high:.6f}",
                "delta_wide_low": f"{pair.wide_low:.6f}",
                "delta_wide_high": f"{pair.wide_high:.6f}",
                "p": f"{pair.p:.6f}",
                "p_adjusted": f"{pair.p_adjusted:.6f}",
                "p_equivalent": f"{pair.p_equivalent:.6f}",
                "seeds_needed": pair.seeds_needed or "",
                "sign_alone": own.sign,
                "delta_ci_low_alone": f"{own.low:.6f}",
                "delta_ci_high_alone": f"{own.high:.6f}",
                "p_adjusted_alone": f"{own.p_adjusted:.6f}",
            }
        )
    return pd.DataFrame(lines).to_csv(index=False)


def relations_table(report: Report) -> str:
    """Return the published relations, one by one, as a Markdown table."""
    own_title = [OWN] if report.is_pooled else []
    titles = ["published", "ours", "Δ", "95 % interval", *own_title, "p (Holm)", "seeds"]
    lines = [[*titles, "outcome at this setting"]]
    for relation, own in zip(report.relations, report.alone.relations, strict=True):
        pair = relation.judged
        a = report.rows[pair.a].name
        b = report.rows[pair.b].name
        outcome = relation.outcome + mark_change(relation.outcome, own.outcome)
        if relation.outcome == "open":
            outcome += f"; {_settling(relation)}"
        lines.append(
            [
                f"{a} {relation.published} {b}",
                f"{a} {pair.sign} {b}",
                f"{pair.delta:+.4f}",
                spell_interval(pair),
                *([spell_interval(own.judged)] if report.is_pooled else []),
                spell_p(pair.p_adjusted),
                str(pair.num_seeds),
                outcome,
            ]
        )
    return markdown_lines(lines, f"<<>>{'>' * len(own_title)}>><")


def _settling(relation: Relation) -> str:
    """Say how an open published relation could be settled."""
    pair = relation.judged
    if pair.verdict != "open":
        return "there is a difference, which may be larger or smaller than the margin"
    if pair.seeds_needed is None:
        return f"more than {MOST_SEEDS} seeds would settle it"
    further = pair.seeds_needed - pair.num_seeds
    told = f"about {further} more seeds would tell their difference, or that they are equal"
    if relation.published == SIGNS["equivalent"]:
        return f"{told}, in 4 of 5 cases; a difference may then still be one below the margin"
    return f"{told}, in 4 of 5 cases"
