"""The order of the rows of a table."""

import itertools

from rope_exp.comparable import Row
from rope_exp.report import Report


def ranked_rows(report: Report) -> list[Row]:
    """Return the rows that have a rank, best first."""
    return [row for label, row in report.rows.items() if report.lines[label]["rank"]]


def order(report: Report) -> str:
    """Return the order of the means, with the sign of the test between neighbours."""
    ranked = ranked_rows(report)
    told = ranked[0].name
    for first, second in itertools.pairwise(ranked):
        pair = report.pairs.get((first.label, second.label))
        told += f" {pair['sign'] if pair else '?'} {second.name}"
    return told
