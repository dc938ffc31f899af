"""The published relations: the test and the outcome of each."""

from typing import Any

import pandas as pd

from rope_exp.report import OWN, Column, Report, Table, adjusted_p, interval, number, span
from rope_exp.stats import MOST_SEEDS, ROOM, SEEDS_NEEDED, SIGNS, Pair, outcome

# Above the tables of others.
ORDER = -1


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
