"""The table of a report: rows by label, their judged differences, columns for readers, and formats.

A report knows no leaf. Sentences, figures and probes are files of words/, figures/ and probes/,
each with any of the functions that `Report.told`, `Report.files` and `Report.charts` call.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import pandas as pd

from rope_exp import published, stats
from rope_exp.comparable import OWN_RATE, ROW, Row, rows_of, spelled
from rope_exp.config import RunConfig
from rope_exp.costs import kept
from rope_exp.folder import ReportError, Run
from rope_exp.identity import choices, chosen
from rope_exp.published import REFERENCE, UNROTATED, Published
from rope_exp.sections import SUBSETS, SoftmaxConfig
from rope_exp.stats import MOST_SEEDS, SIGNS, Noise, Pair
from rope_exp.table import Column, Table, csv_of, interval, millions, number, span, spell_p

# If all rows answer more than all but this share, they cannot be distinguished.
ROOM = 0.01
# Words for a row, by the verdict on the pair (reference, row).
WORDS = {"better": "worse", "worse": "better", "equivalent": "equivalent", "open": "open"}
# The sites of each subset, by the label of its row.
SITES_OF = {f"{''.join(sites)}_rope" if sites else UNROTATED: sites for sites in SUBSETS}
# The columns of a frame after table.csv's last one are for readers only.
LAST_OF_CSV = "bits_per_byte"
OWN = "95 % interval, paired"
_SEEDS_NEEDED = ("seeds_needed_low", "seeds_needed_high")
_COUNTS = ("num_seeds", *_SEEDS_NEEDED, "params", "cached", "state", "rank", "published_rank")
_OF_PAIRS = [
    *("a", "sign", "b", "num_seeds", "delta", "delta_ci_low", "delta_ci_high", "delta_wide_low"),
    *("delta_wide_high", "p", "p_adjusted", "p_equivalent", *_SEEDS_NEEDED),
]
_OF_PAIRS_ALONE = ["sign", "delta_ci_low", "delta_ci_high", "p_adjusted"]


def perplexity(loss: float) -> float:
    """Return e to a loss in nats per token."""
    # Past this a float overflows.
    return math.exp(loss) if loss < 709 else math.inf


def bits_per_byte(loss: float, config: RunConfig, env: Mapping[str, Any]) -> float | None:
    """Return a loss in nats per token as bits per byte of held-out text; None if it has none."""
    corpus = env.get("corpus", {})
    sizes = [corpus.get(key, {}).get("validation") for key in ("tokens", "text_bytes")]
    if None in sizes or not config.causal:
        return None
    num_tokens, num_bytes = sizes
    bits: float = loss * num_tokens / num_bytes / math.log(2)
    return bits


def corpus_name(config: RunConfig) -> str:
    """Return the short name of a run's corpus."""
    name = str(config.data.name)
    return {"wikipedia-en-good-featured": "English"}.get(name, name)


def setting_name(config: RunConfig) -> str:
    """Return the corpus, tokens and warmup steps of a run: `English, 2M tokens, warmup 100`."""
    # Two digits are enough to distinguish token budgets.
    tokens = millions(float(f"{config.train.num_tokens:.2g}"))
    return f"{corpus_name(config)}, {tokens} tokens, warmup {config.num_warmup_steps}"


@dataclass(frozen=True, eq=False)
class Report:
    """The input of all tables, sentences and figures."""

    keys: Sequence[str]  # the factors that distinguish rows
    source: Published  # what was published about such rows
    rows: Mapping[str, Row]  # by label, best first
    reference: Row  # without runs if the comparison has none
    left_out: Mapping[str, str]  # folders without a readable run, and the reason
    noise: Noise | None  # None with fewer than two seeds
    hidden: Sequence[tuple[str, str]] = ()  # published relations that another table decides

    @property
    def runs(self) -> list[Run]:
        """All runs, by row and seed."""
        return [run for row in self.rows.values() for run in row.runs]

    @cached_property
    def losses(self) -> pd.DataFrame:
        """The losses of rows that have any."""
        return stats.table_of({label: row.losses for label, row in self.rows.items() if row.losses})

    @cached_property
    def against(self) -> dict[str, Pair]:
        """The judged pair (reference, row) by the other row; one family."""
        label = self.reference.label
        family = [(label, other) for other in self.losses if other != label]
        return {b: pair for (_, b), pair in stats.judge(self.losses, family, self.noise).items()}

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Pair]:
        """All judged pairs; one family."""
        return stats.judge(self.losses, itertools.combinations(self.losses, 2), self.noise)

    @cached_property
    def relations(self) -> list[Pair]:
        """The published relations that this table decides, with `published` and `outcome`."""
        relations = []
        for (a, b), pair in stats.judge(self.losses, self.source.signs, self.noise).items():
            # If nearly all examples like those in training are solved, neither losses nor matches
            # show which is better (docs/paper/protocol.md, section 8).
            runs = [*self.rows[a].runs, *self.rows[b].runs]
            answers = filter(None, (run.probes.get("answers", {}).get("test") for run in runs))
            counts = [(sum(answer["count"]), sum(answer["right"])) for answer in answers]
            shares = [right / count for count, right in counts if count]
            is_easy = bool(shares) and min(shares) >= 1 - ROOM
            sign = self.source.signs[a, b]
            word = "open; the task is too easy" if is_easy else stats.outcome(pair, sign)
            if (a, b) not in self.hidden:
                relations.append({**pair, "published": sign, "outcome": word})
        return relations

    @cached_property
    def decided(self) -> dict[str, Pair]:
        """As `against`, but a published relation is decided by its own, primary family."""
        label = self.reference.label
        family = list(self.source.signs)
        primary = stats.judge(self.losses, family, self.noise)
        primary |= stats.judge(self.losses, [(b, a) for a, b in family], self.noise)
        for a, b in self.hidden:
            primary.pop((a, b), None)
            primary.pop((b, a), None)
        return {other: primary.get((label, other), pair) for other, pair in self.against.items()}

    @property
    def is_pooled(self) -> bool:
        """True if the intervals also use the noise of other pairs."""
        return self.noise is not None and not self.noise.is_paired and len(self.pairs) > 1

    @cached_property
    def alone(self) -> "Report":
        """The same report with every pair judged by the paired t test, which assumes less."""
        return replace(self, noise=self.noise and replace(self.noise, is_paired=True))

    @property
    def of_variants(self) -> bool:
        """True if rows differ only in their variant."""
        return list(self.keys) == ["pe"]

    @property
    def published(self) -> Published | None:
        """The published table of such rows."""
        return self.source if self.source.losses else None

    @property
    def task(self) -> Any:
        """The facts of the generated data if all runs share its kind; None for text."""
        kinds = {run.config.data.kind: run.config.data.task for run in self.runs}
        return next(iter(kinds.values())) if len(kinds) == 1 else None

    @property
    def unit(self) -> str:
        """The unit of losses."""
        return " or ".join(dict.fromkeys(run.config.data.unit for run in self.runs))

    @property
    def margin_unit(self) -> str:
        """The unit of the margin."""
        return "nats" if self.unit.startswith("nats") else f"of {self.unit}"

    @property
    def groups(self) -> str:
        """The groups of the runs."""
        return ", ".join(sorted({run.group for run in self.runs}))

    def answers(self, probe: str) -> dict[str, list[Any]]:
        """Return the answers to a probe by row, for rows with any."""
        answers: dict[str, list[Any]] = {}
        for row in self.rows.values():
            for run in row.runs:
                if probe in run.probes:
                    answers.setdefault(row.label, []).append(run.probes[probe])
        return answers

    def told(self, part: str) -> list[str]:
        """Return what the functions in words/ and probes/ of this name tell, such as `notes`."""
        functions = parts(part, "words", "probes").values()
        return [text for function in functions for text in function(self)]

    @cached_property
    def charts(self) -> dict[str, bytes]:
        """The figures that the runs allow, as SVG files by name."""
        if "style" not in choices("figures"):
            return {}
        draw = chosen("figures", "style", "figures").drawn
        functions = parts("figure", "figures", "probes")
        charts = {name: draw(figure, self) for name, figure in functions.items()}
        return {name: svg for name, svg in charts.items() if svg is not None}

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """The numbers and words of each row, by its label: first those of table.csv."""
        label = self.reference.label
        own = {row: self.rows[row].losses for row in self.rows}
        known: dict[str, Mapping[int, float]] = {row: {} for row in self.rows}
        # Each loss was published once, so it counts as one seed.
        known |= {row: {0: loss} for row, loss in self.source.losses.items()}
        ours: Any = stats.contrasts(stats.table_of(own), label).to_dict("index")
        theirs: Any = stats.contrasts(stats.table_of(known), label).to_dict("index")
        return {row: _line(self, self.rows[row], ours[row], theirs[row]) for row in self.rows}

    @property
    def frame(self) -> pd.DataFrame:
        """`lines`, with missing values as NaN or NA."""
        return pd.DataFrame(self.lines.values()).astype(dict.fromkeys(_COUNTS, "Int64"))


def parts(part: str, *folders: str) -> dict[str, Any]:
    """Return a function of every file of these folders that has it, by its NAME and in its ORDER.

    The file's own name and 0 are the defaults.
    """
    leaves = [chosen(folder, name, folder) for folder in folders for name in choices(folder)]
    leaves.sort(key=lambda leaf: getattr(leaf, "ORDER", 0))
    return {
        getattr(leaf, "NAME", leaf.__name__.rpartition(".")[2]): getattr(leaf, part)
        for leaf in leaves
        if hasattr(leaf, part)
    }


def build(
    runs: Sequence[Run],
    keys: Sequence[str],
    reference: str | None = None,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Arrange runs in rows by some factors, and compare them with the reference, if they may be.

    The reference is a row's label or its name; None: `_standard`.
    """
    rows = rows_of(runs, keys)
    if reference is None:
        labels = [_standard(rows, keys)]
    else:
        named = [label for label, row in rows.items() if row.name == reference]
        labels = [reference] if reference in rows else named
    if len(labels) != 1:
        raise ReportError(
            f"--reference {reference} matches {len(labels) or 'no'} rows. "
            f"Available: {', '.join(rows)}"
        )
    source = published.about(runs, keys)
    if source.losses and source.losses.keys().isdisjoint(rows):
        source = Published()

    [label] = labels
    losses = stats.table_of({row.label: row.losses for row in rows.values()})
    ordered = {row: rows[row] for row in stats.contrasts(losses, label).index}
    trained = losses[list(ordered)].dropna(axis="columns", how="all")
    noise = stats.noise_of(trained, paired=is_always_paired(runs))
    own = rows.get(label, Row(label, label, 0, []))
    return Report(keys, source, ordered, own, left_out, noise)


def is_always_paired(runs: Sequence[Run]) -> bool:
    """Return whether a campaign of these runs always uses the paired test."""
    return any(run.test == "paired" for run in runs)


def _standard(rows: Mapping[str, Row], keys: Sequence[str]) -> str:
    """Return the label of the default reference, which may be missing from the rows.

    Variants: qk_rope, or else one that rotates only q and k, or nope for a kind without queries.
    Named rows: softmax attention with qk_rope and as many key/value heads as query heads.
    """
    configs = {label: row.runs[0].config for label, row in rows.items()}
    if list(keys) == ["pe"]:
        if "q" not in next(iter(configs.values())).attn.sites():
            return UNROTATED
        alike = [label for label, config in configs.items() if config.pe.rotate == ("q", "k")]
        return alike[0] if alike and REFERENCE not in rows else REFERENCE

    for label, config in configs.items() if ROW in keys else ():
        heads, kv_heads = config.model.num_attention_heads, config.model.num_key_value_heads
        is_softmax = isinstance(config.attn, SoftmaxConfig)
        if is_softmax and heads == kv_heads and config.pe.label == REFERENCE:
            return label
    return next(iter(rows))


def _line(
    report: Report, row: Row, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the line of a row, given its contrasts and the published ones."""
    run = row.runs[0]
    config = run.config
    cached, state = kept(config.attn, config.model, config.pe)
    label, reference = row.label, report.reference.label
    judged = report.against.get(label, {})
    own = report.alone.against.get(label, {})
    among = report.pairs.get((reference, label)) or report.pairs.get((label, reference)) or {}
    # Each pair occurs once, the better row first; the table's Δ is the row minus the reference.
    sign = 1 if among.get("b") == label else -1
    wide = sorted(sign * among[f"delta_wide_{end}"] for end in ("low", "high") if among)
    loss = ours["loss_mean"]
    bits = None if loss is None else bits_per_byte(loss, config, run.env)
    line = {
        "group": run.group,
        "pe": config.pe.label,
        "rotate": "".join(config.pe.rotate),
        **{key: ours[key] for key in ("num_seeds", "loss_mean", "loss_sd", "delta")},
        **{key: judged.get(key) for key in ("delta_ci_low", "delta_ci_high")},
        "p_holm": judged.get("p_adjusted"),
        "verdict": _verdict(report, row),
        "published_loss": theirs["loss_mean"],
        "published_delta": theirs["delta"],
        "p_adjusted": among.get("p_adjusted"),
        "family": f"{among['family']} pairs" if among else None,
        "delta_wide_low": wide[0] if among else None,
        "delta_wide_high": wide[1] if among else None,
        **{key: judged.get(key) for key in ("p_equivalent", *_SEEDS_NEEDED)},
        **{key: spelled(config, key) for key in report.keys if key != "pe"},
        "kind": config.attn.label,
        "params": next((run.result["params"] for run in row.runs if run.result), None),
        "cached": cached,
        "state": state,
        "delta_ci_low_alone": own.get("delta_ci_low"),
        "delta_ci_high_alone": own.get("delta_ci_high"),
        "p_holm_alone": own.get("p_adjusted"),
        "verdict_alone": _verdict(report.alone, row) if own else None,
        "perplexity": None if bits is None or loss is None else perplexity(loss),
        LAST_OF_CSV: bits,
        "rank": ours["rank"],
        "published_rank": theirs["rank"],
    }
    return line | _words(report, row, line)


def _verdict(report: Report, row: Row) -> str:
    """Return the verdict in words, or a row's status if it has no loss."""
    judged = report.decided.get(row.label)
    return f"{WORDS[judged['verdict']]} {row.mark}".rstrip() if judged else row.verdict


def _words(report: Report, row: Row, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a row's line for readers."""
    config = row.runs[0].config
    decided = report.decided.get(row.label, {})
    everywhere = {run.config.seed for run in report.runs if run.status == "finished"}
    shared = row.losses.keys() & report.reference.losses.keys()
    # Its mean is over other seeds than the table's.
    has_other_seeds = bool(row.losses) and not row.losses.keys() == everywhere == shared
    mark = " ‡" if has_other_seeds else ""

    ci = interval(line["delta_ci_low"], line["delta_ci_high"])
    if ci and line["delta_ci_low"] * line["delta_ci_high"] > 0 and decided["verdict"] == "open":
        ci += f" (adjusted: {interval(decided['delta_wide_low'], decided['delta_wide_high'])})"
    pooling = "" if line["verdict"] == line["verdict_alone"] else " †"
    sizes = {"{:,}": line["cached"], "{:,} fixed": line["state"]}
    cache = ", plus ".join(form.format(size) for form, size in sizes.items() if size) or "0"
    return {
        "name": row.name,
        "rotates": " ".join(config.pe.rotate),
        "attention": config.attn.kind,
        "cache": None if line["cached"] is None else cache,
        "learning_rate": spelled(config, OWN_RATE),
        "mark": mark,
        "loss": f"{number(line['loss_mean'], '.4f')}{mark}" if row.losses else row.verdict,
        "interval": ci,
        "interval_alone": interval(line["delta_ci_low_alone"], line["delta_ci_high_alone"]),
        "p": _p_of(decided) if decided else None,
        "marked": f"{line['verdict']}{pooling}" if decided else None,
    }


def _p_of(judged: Pair) -> str:
    """Return the adjusted p-value of the test that gave the verdict, as text."""
    is_equivalent = judged["verdict"] == "equivalent"
    return spell_p(judged["p_equivalent" if is_equivalent else "p_adjusted"])


def main_table(report: Report) -> Table:
    """Return the table of rows; published columns only if there is a published table."""
    delta = f"Δ to {report.reference.name}"
    of_kinds = ROW in report.keys
    has_text = any(line[LAST_OF_CSV] for line in report.lines.values())
    rates = {line["learning_rate"] for line in report.lines.values()}
    columns = {
        Column("variant" if report.of_variants else ", ".join(report.keys), "name"): True,
        Column("rotates", "rotates"): True,
        Column("kind", "attention"): of_kinds,
        Column("parameters", "params", ",d"): of_kinds,
        Column("cached per token and layer", "cache"): of_kinds,
        Column("learning rate", "learning_rate"): OWN_RATE not in report.keys and len(rates) > 1,
        Column("seeds", "num_seeds", "d"): True,
        Column("loss (mean)", "loss", "s"): True,
        Column("perplexity", "perplexity", ".2f"): has_text,
        Column("bits per byte", LAST_OF_CSV, ".4f"): has_text,
        Column("sd over seeds", "loss_sd", ".4f"): True,
        Column(delta, "delta", "+.4f"): True,
        Column("95 % interval", "interval"): report.noise,
        Column(OWN, "interval_alone"): report.is_pooled,
        Column("p (Holm)", "p"): report.noise,
        Column("verdict", "marked"): report.noise,
        Column("published loss", "published_loss", ".3f"): report.published,
        Column(f"published {delta}", "published_delta", "+.3f"): report.published,
        Column("rank", "rank", "d"): True,
        Column("published rank", "published_rank", "d"): report.published,
    }
    return Table([column for column, is_shown in columns.items() if is_shown], report.frame)


def relations_table(report: Report) -> Table:
    """Return a line for each published relation, with its test and its outcome."""
    lines = []
    for pair, own in zip(report.relations, report.alone.relations, strict=True):
        a, b = report.rows[pair["a"]].name, report.rows[pair["b"]].name
        mark = "" if pair["outcome"] == own["outcome"] else " †"
        settling = f"; {_settling(pair)}" if pair["outcome"] == "open" else ""
        line = {
            "published": f"{a} {pair['published']} {b}",
            "ours": f"{a} {pair['sign']} {b}",
            "Δ": number(pair["delta"], "+.4f"),
            "95 % interval": interval(pair["delta_ci_low"], pair["delta_ci_high"]),
        }
        if report.is_pooled:
            line[OWN] = interval(own["delta_ci_low"], own["delta_ci_high"])
        if pair["family"] > 1:
            wide = interval(pair["delta_wide_low"], pair["delta_wide_high"])
            line[f"for all {pair['family']} (Bonferroni)"] = wide
        line |= {
            "p (Holm)": _p_of(pair),
            "seeds": str(pair["num_seeds"]),
            "outcome at this setting": f"{pair['outcome']}{mark}{settling}",
        }
        lines.append(line)

    table = pd.DataFrame(lines)
    forms = dict.fromkeys(("published", "ours", "outcome at this setting"), "")
    return Table([Column(name, name, forms.get(name, "s")) for name in map(str, table)], table)


def _settling(pair: Pair) -> str:
    """Say how an open published relation could be settled."""
    if pair["verdict"] != "open":
        return "a difference is shown, but not whether it exceeds the margin"
    low, high = (pair[key] and pair[key] - pair["num_seeds"] for key in _SEEDS_NEEDED)
    if low is None:
        return f"settling it needs more than {MOST_SEEDS} seeds"
    most = MOST_SEEDS - pair["num_seeds"]
    count = span((low, high)) if high else f"{low} to more than {most}"
    seeds = f"{count} more {'seed' if count == '1' else 'seeds'} would settle it in 4 of 5 cases"
    if pair["published"] == SIGNS["equivalent"]:
        return f"{seeds}; a difference may then still be below the margin"
    return seeds


def pairs_csv(report: Report) -> str:
    """Return pairs.csv: every pair of rows, judged together; the last columns by paired t tests."""
    table = pd.DataFrame(report.pairs.values())[_OF_PAIRS]
    alone = pd.DataFrame(report.alone.pairs.values())[_OF_PAIRS_ALONE].add_suffix("_alone")
    return csv_of(table.join(alone).astype(dict.fromkeys(_SEEDS_NEEDED, "Int64")))


def table_csv(report: Report) -> str:
    """Return table.csv, with six decimals and empty cells for missing numbers."""
    return csv_of(report.frame.loc[:, :LAST_OF_CSV], signed=True)


def table_md(report: Report, pictures: Iterable[str] = ()) -> str:
    """Return table.md: the table, the summary, notes, every assumption, and pictures by path."""
    relations = [
        "Published relations (Δ: the second variant's loss minus the first's):",
        relations_table(report).markdown(),
    ]
    title = "Assumptions that the source leaves open (docs/comparing.md lists those without a key):"
    return paragraphs(
        *(f"**{caption}**" for caption in report.told("caption")),
        main_table(report).markdown(),
        *report.told("summary"),
        *(relations if report.relations else []),
        *report.told("tables"),
        *(f"![{PurePosixPath(picture).stem}]({picture})" for picture in pictures),
        *bullets("Notes:", report.told("notes")),
        *bullets(title, report.told("assumptions")),
    )


def paragraphs(*parts: str) -> str:
    """Return paragraphs in Markdown."""
    return "\n\n".join(parts) + "\n"


def bullets(title: str, items: Sequence[str]) -> list[str]:
    """Return a title and a list, or nothing if the list is empty."""
    lines = [f"- {' '.join(item.split())}" for item in items]
    return [title, "\n".join(lines)] if lines else []


def table_tex(report: Report) -> str:
    """Return table.tex: a tabular for booktabs."""
    caption = " ".join([*report.told("caption"), "Needs \\usepackage{booktabs}."])
    return f"% {caption}\n{main_table(report).tex()}"
