"""pairs.csv: every pair of rows, judged together."""

from rope_exp.report import Report
from rope_exp.stats import SEEDS_NEEDED
from rope_exp.table import csv_of

_COLUMNS = [
    *("a", "sign", "b", "num_seeds", "delta", "delta_ci_low", "delta_ci_high", "delta_wide_low"),
    *("delta_wide_high", "p", "p_adjusted", "p_equivalent", *SEEDS_NEEDED),
    # By the paired t test of each pair.
    *("sign_alone", "delta_ci_low_alone", "delta_ci_high_alone", "p_adjusted_alone"),
]


def files(report: Report) -> dict[str, str]:
    """Return pairs.csv, if any two rows share two seeds."""
    pairs = report.pairs["all"]
    return {} if pairs.empty else {"pairs.csv": csv_of(pairs[_COLUMNS])}
