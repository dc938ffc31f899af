"""The table results/cost.md: runs, tokens and hours of each campaign, from its records."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rope_exp.evidence.runs import Run
from rope_exp.report.spelling import markdown_table
from rope_exp.run.provenance import spelled


def cost_file(campaigns: Mapping[str, Sequence[Run]]) -> bytes:
    """Return cost.md: a line for each campaign, and one for all.

    Args:
        campaigns: the runs of each campaign, by its name.
    """
    lines = [_line(f"`{name}`", runs) for name, runs in sorted(campaigns.items())]
    everything = [run for runs in campaigns.values() for run in runs]
    table = markdown_table(pd.DataFrame([*lines, _line("all", everything)]))
    return (
        "**What the campaigns cost: runs that have a record, the tokens that they trained on, and "
        "their hours, summed over runs, of which several went at a time. Commits are those of the "
        f"code that trained.**\n\n{table}\n"
    ).encode()


def hours(runs: Sequence[Run]) -> float:
    """Return the summed wall time of runs, in hours."""
    return float(sum(run.result.get("wall_s", 0) for run in runs) / 3600)


def _line(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    commits = {spelled(run.env["git"]) for run in runs if run.env.get("git")}
    return {
        "campaign": name,
        "runs": len(runs),
        "tokens, M": f"{sum(run.result.get('tokens', 0) for run in runs) / 1e6:,.1f}",
        "hours": f"{hours(runs):.1f}",
        "commits": len(commits),
    }
