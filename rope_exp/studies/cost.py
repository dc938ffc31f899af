"""The cost of campaigns: runs, tokens and hours of each, in results/cost.md."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report
from rope_exp.report.spelling import markdown_table
from rope_exp.run.provenance import spelled


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return cost.md: a line for each campaign, and one for all; only if all are asked for."""
    if len(asked) < len(records):
        return {}
    lines = [_line(f"`{name}`", runs) for name, runs in sorted(records.items())]
    everything = [run for runs in records.values() for run in runs]
    table = markdown_table(pd.DataFrame([*lines, _line("all", everything)]))
    text = (
        "**Cost of the campaigns: recorded runs, training tokens and hours. Hours are summed over "
        "runs, several of which ran at the same time. Commits are those of the training code."
        f"**\n\n{table}\n"
    )
    return {"cost.md": text.encode()}


def _line(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    commits = {spelled(run.env["git"]) for run in runs if run.env.get("git")}
    return {
        "campaign": name,
        "runs": len(runs),
        "tokens, M": f"{sum(run.result.get('tokens', 0) for run in runs) / 1e6:,.1f}",
        "hours": f"{sum(run.result.get('wall_s', 0) for run in runs) / 3600:.1f}",
        "commits": len(commits),
    }
