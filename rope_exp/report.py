"""Judged pairs of rows, as frames: all pairs for pairs.csv, and the published relations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from rope_exp.comparable import OWN_RATE, ROW, has_own_rates, spelled
from rope_exp.content import (
    NOTHING,
    Column,
    Line,
    Relation,
    Report,
    cells,
    csv_of,
    interval,
    markdown_of,
    number,
    sides,
    span,
)
from rope_exp.costs import kept
from rope_exp.runs import bits_per_byte, perplexity
from rope_exp.stats import MOST_SEEDS, SIGNS, Judged, Verdict
from rope_exp.words.answers import task_tables
from rope_exp.words.assumptions import assumptions
from rope_exp.words.probed import copies_part, extension_part
from rope_exp.words.sentences import (
    OWN,
    caption,
    has_other_seeds,
    interval_alone,
    notes,
    p_of,
    summary,
    told_interval,
)

_COLUMNS = [
    "a",
    "sign",
    "b",
    "num_seeds",
    "delta",
    "delta_ci_low",
    "delta_ci_high",
    "delta_wide_low",
    "delta_wide_high",
    "p",
    "p_adjusted",
    "p_equivalent",
    "seeds_needed_low",
    "seeds_needed_high",
    "sign_alone",
    "delta_ci_low_alone",
    "delta_ci_high_alone",
    "p_adjusted_alone",
]


def pairs_table(report: Report) -> str:
    """Return pairs.csv: every pair of rows, judged together; delta is b's loss minus a's.

    The last columns are from the paired t test.
    """
    table = _judged(report.pairs.values())
    alone = _judged(report.alone.pairs.values())
    table = table.merge(alone, on=["a", "b"], suffixes=("", "_alone"))
    counts = dict.fromkeys(["seeds_needed_low", "seeds_needed_high"], "Int64")
    return csv_of(table[_COLUMNS].astype(counts))


def _judged(pairs: Iterable[Judged]) -> pd.DataFrame:
    """Return pairs as a frame, with intervals named as in table.csv."""
    table = pd.DataFrame([{**asdict(pair), "sign": pair.sign} for pair in pairs])
    intervals = {"low": "delta_ci_low", "high": "delta_ci_high"}
    wide = {"wide_low": "delta_wide_low", "wide_high": "delta_wide_high"}
    return table.rename(columns=intervals | wide)


def relations_frame(report: Report) -> pd.DataFrame:
    """Return a line for each published relation, with its test and its outcome."""
    lines: list[dict[str, Any]] = []
    for relation, own in zip(report.relations, report.alone.relations, strict=True):
        pair = relation.judged
        a = report.rows[pair.a].name
        b = report.rows[pair.b].name
        mark = "" if relation.outcome == own.outcome else " †"
        settling = f"; {_settling(relation)}" if relation.outcome == "open" else ""
        lines.append(
            {
                "published": f"{a} {relation.published} {b}",
                "ours": f"{a} {pair.sign} {b}",
                "delta": pair.delta,
                "delta_ci_low": pair.low,
                "delta_ci_high": pair.high,
                "delta_ci_low_alone": own.judged.low,
                "delta_ci_high_alone": own.judged.high,
                "p": p_of(pair),
                "wide_low": pair.wide_low,
                "wide_high": pair.wide_high,
                "num_seeds": pair.num_seeds,
                "outcome": f"{relation.outcome}{mark}{settling}",
            }
        )
    return pd.DataFrame(lines)


def relations_columns(report: Report) -> list[Column]:
    """Return the columns of `relations_frame` for readers."""
    size = report.num_relations
    own = [Column(OWN, "delta_ci_low_alone", "s", interval_alone)]
    family = [Column(f"for all {size} (Bonferroni)", "wide_low", "s", _wide)]
    return [
        Column("published", "published"),
        Column("ours", "ours"),
        Column("Δ", "delta", "+.4f"),
        Column("95 % interval", "delta_ci_low", "s", told_interval),
        *(own if report.is_pooled else []),
        *(family if size > 1 else []),
        Column("p (Holm)", "p", "s"),
        Column("seeds", "num_seeds", "d"),
        Column("outcome at this setting", "outcome"),
    ]


def _wide(line: Mapping[str, Any]) -> str:
    return interval(line["wide_low"], line["wide_high"])


def _settling(relation: Relation) -> str:
    """Say how an open published relation could be settled."""
    pair = relation.judged
    if pair.verdict != "open":
        return "a difference is shown, but not whether it exceeds the margin"
    if pair.seeds_needed_low is None:
        return f"settling it needs more than {MOST_SEEDS} seeds"
    fewest = pair.seeds_needed_low - pair.num_seeds
    if pair.seeds_needed_high is None:
        count = f"{fewest} to more than {MOST_SEEDS - pair.num_seeds}"
    else:
        count = span((fewest, pair.seeds_needed_high - pair.num_seeds))
    seeds = "seed" if count == "1" else "seeds"
    told = f"{count} more {seeds} would settle it in 4 of 5 cases"
    if relation.published == SIGNS["equivalent"]:
        return f"{told}; a difference may then still be below the margin"
    return told


# Words for a row compared with the reference.
WORDS: Mapping[Verdict, str] = {
    "better": "worse",
    "worse": "better",
    "equivalent": "equivalent",
    "open": "open",
}
# The columns of a frame after table.csv's last one are for readers only.
LAST_OF_CSV = "bits_per_byte"
_NOT_ON_TERMINALS = (
    "rotates",
    "perplexity",
    LAST_OF_CSV,
    "p",
    "published_loss",
    "rank",
    "published_rank",
)
_COUNTS = (
    "num_seeds",
    "seeds_needed_low",
    "seeds_needed_high",
    "params",
    "cached",
    "state",
    "rank",
    "published_rank",
)


# -- the frame -------------------------------------------------------------------------------------


def frame(report: Report) -> pd.DataFrame:
    """Return a line for each row, best first, with missing values as NaN or NA."""
    lines = [_line(report, row) for row in report.rows.values()]
    return pd.DataFrame(lines).astype(dict.fromkeys(_COUNTS, "Int64"))


def _line(report: Report, row: Line) -> dict[str, Any]:
    run = row.runs[0]
    config = run.config
    cached, state = kept(config.attn, config.model, config.pe)
    judged = report.against.get(row.label)
    decided = report.decided.get(row.label)
    own = report.alone.against.get(row.label)
    return {
        "group": run.group,
        "pe": config.pe.label,
        "rotate": "".join(config.pe.rotate),
        "num_seeds": row.ours.num_seeds,
        "loss_mean": row.ours.loss_mean,
        "loss_sd": row.ours.loss_sd,
        "delta": row.ours.delta,
        "delta_ci_low": judged and judged.low,
        "delta_ci_high": judged and judged.high,
        "p_holm": judged and judged.p_adjusted,
        "verdict": _word(decided, row),
        "published_loss": row.theirs.loss_mean,
        "published_delta": row.theirs.delta,
        **_among_all_pairs(report, row.label),
        "p_equivalent": judged and judged.p_equivalent,
        "seeds_needed_low": judged and judged.seeds_needed_low,
        "seeds_needed_high": judged and judged.seeds_needed_high,
        **{key: _value(row, key) for key in report.keys if key != "pe"},
        "kind": config.attn.label,
        "params": next((each.result["params"] for each in row.runs if each.result), None),
        "cached": cached,
        "state": state,
        "delta_ci_low_alone": own and own.low,
        "delta_ci_high_alone": own and own.high,
        "p_holm_alone": own and own.p_adjusted,
        "verdict_alone": own and _word(report.alone.decided[row.label], row),
        **_of_text(row),
        # For readers.
        "learning_rate": spelled(config, OWN_RATE),
        "word": decided and decided.verdict,
        "p": decided and p_of(decided),
        "mark": " ‡" if has_other_seeds(report, row) else "",
        "wide_low": decided and decided.wide_low,
        "wide_high": decided and decided.wide_high,
        "name": row.name,
        "rotates": " ".join(config.pe.rotate),
        "attention": config.attn.kind,
        "rank": row.ours.rank,
        "published_rank": row.theirs.rank,
    }


def _of_text(row: Line) -> dict[str, float | None]:
    """Return the mean loss as perplexity and as bits per byte, for runs that predict text."""
    run = row.runs[0]
    loss = row.ours.loss_mean
    bits = None if loss is None else bits_per_byte(loss, run.config, run.env)
    of_tokens = None if bits is None or loss is None else perplexity(loss)
    return {"perplexity": of_tokens, LAST_OF_CSV: bits}


def _word(judged: Judged | None, row: Line) -> str:
    """Return the verdict in words, or a row's status if it has no loss."""
    return row.verdict if judged is None else f"{WORDS[judged.verdict]} {row.mark}".rstrip()


def _value(row: Line, key: str) -> str | None:
    config = row.runs[0].config
    return config.row_name if key == ROW else spelled(config, key)


def _among_all_pairs(report: Report, label: str) -> dict[str, Any]:
    """Return the contrast with the reference, judged among all pairs."""
    reference = report.reference.label
    judged = report.pairs.get((label, reference)) or report.pairs.get((reference, label))
    found: dict[str, Any] = dict.fromkeys(
        ("p_adjusted", "family", "delta_wide_low", "delta_wide_high")
    )
    if judged is not None:
        # Each pair occurs once, the better row first; the table's Δ is the row minus the reference.
        sign = 1 if judged.b == label else -1
        low, high = sorted((sign * judged.wide_low, sign * judged.wide_high))
        found["p_adjusted"] = judged.p_adjusted
        found["family"] = f"{len(report.pairs)} pairs"
        found |= {"delta_wide_low": low, "delta_wide_high": high}
    return found


# -- columns for readers ---------------------------------------------------------------------------


def columns(report: Report) -> list[Column]:
    """Return the columns from left to right; published ones only if there is a published table."""
    delta = f"Δ to {report.reference.name}"
    told_by = "variant" if report.of_variants else ", ".join(report.keys)
    found = [Column(told_by, "name"), Column("rotates", "rotates")]
    if report.of_rows:
        found += [
            Column("kind", "attention"),
            Column("parameters", "params", ",d"),
            Column("cached per token and layer", "cached", text=_cached),
        ]
    if has_own_rates(report.rows, report.keys):
        found.append(Column("learning rate", "learning_rate"))
    found += [Column("seeds", "num_seeds", "d"), Column("loss (mean)", "loss_mean", ".4f", _loss)]
    if any(_of_text(row)[LAST_OF_CSV] for row in report.rows.values()):
        found.append(Column("perplexity", "perplexity", ".2f"))
        found.append(Column("bits per byte", LAST_OF_CSV, ".4f"))
    found += [Column("sd over seeds", "loss_sd", ".4f"), Column(delta, "delta", "+.4f")]
    if report.noise:
        found.append(Column("95 % interval", "delta_ci_low", text=told_interval))
        if report.is_pooled:
            found.append(Column(OWN, "delta_ci_low_alone", text=interval_alone))
        found.append(Column("p (Holm)", "p"))
        found.append(Column("verdict", "verdict", text=_verdict))
    if report.published:
        found.append(Column("published loss", "published_loss", ".3f"))
        found.append(Column(f"published {delta}", "published_delta", "+.3f"))
    found.append(Column("rank", "rank", "d"))
    if report.published:
        found.append(Column("published rank", "published_rank", "d"))
    return found


def _cached(line: Mapping[str, Any]) -> str:
    cached, state = line["cached"], line["state"]
    if pd.isna(cached):
        return ""
    if not state:
        return f"{cached:,}"
    return f"{cached:,}, plus {state:,} fixed" if cached else f"{state:,} fixed"


def _loss(line: Mapping[str, Any]) -> str:
    """Return the mean, marked if it is over other seeds than the table's."""
    loss = number(line["loss_mean"], ".4f")
    return f"{loss}{line['mark']}" if loss else line["verdict"]


def _verdict(line: Mapping[str, Any]) -> str:
    """Return a judged row's verdict, marked if the paired test would change it."""
    if pd.isna(line["p_holm"]):
        return ""
    mark = "" if line["verdict"] == line["verdict_alone"] else " †"
    return f"{line['verdict']}{mark}"


# -- formats ---------------------------------------------------------------------------------------


def csv_table(report: Report) -> str:
    """Return table.csv, with six decimals and empty cells for missing numbers."""
    return csv_of(frame(report).loc[:, :LAST_OF_CSV], signed=True)


def markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """Return table.md: the table, the summary, notes, every assumption, and pictures by path."""
    relations = []
    if report.relations:
        relations = [
            "Published relations (Δ: the second variant's loss minus the first's):",
            markdown_of(relations_columns(report), relations_frame(report)),
        ]

    parts = [
        f"**{caption(report)}**",
        markdown_of(columns(report), frame(report)),
        summary(report),
        *relations,
        *task_tables(report),
        *extension_part(report),
        *copies_part(report),
        *(f"![{PurePosixPath(picture).stem}]({picture})" for picture in pictures),
        *_notes(report),
        "Assumptions that the source leaves open (docs/comparing.md lists those without a key):",
        _bullets(assumptions(report)),
    ]
    return "\n\n".join(parts) + "\n"


def markdown_of_seeds(report: Report) -> str:
    """Return all_seeds.md of a table with further seeds: exploratory, so rows have no verdict."""
    shown = [column for column in columns(report) if column.key not in ("p", "verdict")]
    parts = [
        f"**{caption(report)}**",
        "Exploratory: no verdict rests on this table. It adds other campaigns' seeds of the same "
        "configurations to those of [the campaign's own](table.md).",
        markdown_of(shown, frame(report)),
    ]
    if report.relations:
        parts += [
            "Published relations with further seeds (Δ: the second variant's loss minus the "
            "first's; p by Holm over all published relations):",
            markdown_of(relations_columns(report), relations_frame(report)),
        ]
    return "\n\n".join([*parts, *_notes(report)]) + "\n"


def _notes(report: Report) -> list[str]:
    said = _bullets(notes(report))
    return ["Notes:", said] if said else []


def _bullets(items: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(item.split())}" for item in items)


def tex_table(report: Report) -> str:
    """Return table.tex: a tabular for booktabs."""
    shown = columns(report)
    headings, *lines = cells(shown, frame(report))
    aligned = sides(shown).replace("<", "l").replace(">", "r")
    table = pd.DataFrame(lines, columns=headings).to_latex(
        index=False, escape=True, column_format=aligned
    )
    for sign, in_tex in (("Δ", r"$\Delta$"), (NOTHING, "---"), ("< ", "$<$ "), ("†", r"$\dagger$")):
        table = table.replace(sign, in_tex)
    # A hyphen before a number is a minus; after a letter it is part of a name.
    table = re.sub(r"(?<!\w)-(?=\d)", "$-$", table)
    return f"% {caption(report)} Needs \\usepackage{{booktabs}}.\n{table}"


def plain_table(report: Report) -> str:
    """Return aligned columns for a terminal, without those that its width has no room for."""
    shown = [column for column in columns(report) if column.key not in _NOT_ON_TERMINALS]
    lines = cells(shown, frame(report))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    form = "  ".join(
        f"{{:{side}{width}}}" for side, width in zip(sides(shown), widths, strict=True)
    )
    return "".join(form.format(*line) + "\n" for line in lines)
