"""The table of a report: rows by label, their judged differences, columns for readers, and formats.

A report knows no leaf. Sentences, figures and probes are files of words/, figures/ and probes/,
each with any of the functions that `Report.told`, `Report.files` and `Report.charts` call.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import pandas as pd

from rope_exp import published
from rope_exp.comparable import OWN_RATE, ROW, Row, comparable, has_own_rates, spelled
from rope_exp.config import RunConfig
from rope_exp.costs import kept
from rope_exp.identity import choices, chosen
from rope_exp.published import REFERENCE, UNROTATED, Published
from rope_exp.rows import TEST, Facts
from rope_exp.runs import ReportError, Run, bits_per_byte, perplexity
from rope_exp.sections import SUBSETS, SoftmaxConfig
from rope_exp.stats import (
    MOST_SEEDS,
    SIGNS,
    Noise,
    Pair,
    contrasts,
    judge,
    noise_of,
    outcome,
    table_of,
)
from rope_exp.table import Column, Table, csv_of, interval, millions, number, span, spell_p

# If all rows answer more than all but this share, they cannot be distinguished.
ROOM = 0.01
# Words for a row, by the verdict on the pair (reference, row).
WORDS = {"better": "worse", "worse": "better", "equivalent": "equivalent", "open": "open"}
# The sites of each subset, by the label of its row.
SITES_OF = {f"{''.join(sites)}_rope" if sites else UNROTATED: sites for sites in SUBSETS}
# The columns of a frame after table.csv's last one are for readers only.
LAST_OF_CSV = "bits_per_byte"
# Title of the interval of the paired t test, beside the pooled one.
OWN = "95 % interval, paired"
_SEEDS_NEEDED = ("seeds_needed_low", "seeds_needed_high")
_COUNTS = ("num_seeds", *_SEEDS_NEEDED, "params", "cached", "state", "rank", "published_rank")
_INTERVALS = ("delta_ci_low", "delta_ci_high", "delta_wide_low", "delta_wide_high")
_P_VALUES = ("p", "p_adjusted", "p_equivalent")
_OF_PAIRS = ("a", "sign", "b", "num_seeds", "delta", *_INTERVALS, *_P_VALUES, *_SEEDS_NEEDED)
_OF_PAIRS_ALONE = ("sign", "delta_ci_low", "delta_ci_high", "p_adjusted")


def corpus_name(config: RunConfig) -> str:
    """Return the short name of a run's corpus."""
    name = str(config.data.name)
    return {"wikipedia-en-good-featured": "English"}.get(name, name)


def setting_name(config: RunConfig) -> str:
    """Return the corpus, tokens and warmup steps of a run: `English, 2M tokens, warmup 100`."""
    # Two digits are enough to distinguish token budgets.
    tokens = millions(float(f"{config.train.num_tokens:.2g}"))
    return f"{corpus_name(config)}, {tokens} tokens, warmup {config.num_warmup_steps}"


# Compared by identity, as it has a frame and charts of its own.
@dataclass(frozen=True, eq=False)
class Report:
    """The input of all tables, sentences and figures."""

    keys: Sequence[str]  # the factors that distinguish rows
    source: Published | None  # what was published about such rows
    rows: Mapping[str, Row]  # by label, best first
    reference: Row  # without runs if the comparison has none
    left_out: Mapping[str, str]  # folders without a readable run, and the reason
    noise: Noise | None  # None with fewer than two seeds
    hidden: Sequence[tuple[str, str]] = ()  # published relations that another table decides

    @property
    def runs(self) -> list[Run]:
        """All runs, by row and seed."""
        return [run for row in self.rows.values() for run in row.runs]

    # -- judged pairs, by the names of `stats.judge` --

    @cached_property
    def losses(self) -> pd.DataFrame:
        """The losses of rows that have any."""
        return table_of({label: row.losses for label, row in self.rows.items() if row.losses})

    @cached_property
    def against(self) -> dict[str, Pair]:
        """The pair (reference, row) by the other row; one family."""
        label = self.reference.label
        family = [(label, each) for each in self.losses if each != label]
        return {b: pair for (_, b), pair in judge(self.losses, family, self.noise).items()}

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Pair]:
        """All pairs; one family."""
        return judge(self.losses, list(itertools.combinations(self.losses, 2)), self.noise)

    @cached_property
    def relations(self) -> list[Pair]:
        """The published relations that this table decides, with `published` and `outcome`."""
        signs = _signs(self.source)
        found = []
        for (a, b), pair in judge(self.losses, list(signs), self.noise).items():
            if (a, b) not in self.hidden:
                is_easy = is_too_easy([*self.rows[a].runs, *self.rows[b].runs])
                easy = "open; the task is too easy"
                said = easy if is_easy else outcome(pair, signs[a, b])
                found.append({**pair, "published": signs[a, b], "outcome": said})
        return found

    @cached_property
    def decided(self) -> dict[str, Pair]:
        """The test that decides between the reference and each row, as `against`.

        A published relation is decided by its own family, which is the primary one. So no row is
        called better here that is open there.
        """
        label = self.reference.label
        family = list(_signs(self.source))
        primary = judge(self.losses, family, self.noise)
        primary |= judge(self.losses, [(b, a) for a, b in family], self.noise)
        for a, b in self.hidden:
            primary = {pair: judged for pair, judged in primary.items() if {*pair} != {a, b}}
        return {each: primary.get((label, each), judged) for each, judged in self.against.items()}

    @property
    def is_pooled(self) -> bool:
        """True if the intervals also use the noise of other pairs."""
        return self.noise is not None and not self.noise.is_paired and len(self.pairs) > 1

    @cached_property
    def alone(self) -> "Report":
        """The same report with every pair judged by the paired t test.

        This assumes less than the pooled residual, and has less power with few seeds.
        """
        return replace(self, noise=self.noise and replace(self.noise, is_paired=True))

    @property
    def of_variants(self) -> bool:
        """True if rows differ only in their variant."""
        return list(self.keys) == ["pe"]

    @property
    def published(self) -> Published | None:
        """The published table of such rows."""
        return self.source if self.source and self.source.losses else None

    @property
    def task(self) -> Facts | None:
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
        found = {
            label: [run.probes[probe] for run in row.runs if probe in run.probes]
            for label, row in self.rows.items()
        }
        return {label: answers for label, answers in found.items() if answers}

    def told(self, part: str) -> list[str]:
        """Return the paragraphs, or the sentences, that words/ and probes/ tell.

        Args:
            part: the function of their files: caption, summary, tables, notes, assumptions, or
                terminal.
        """
        functions = parts(part, "words", "probes").values()
        return [text for function in functions for text in function(self)]

    @cached_property
    def charts(self) -> dict[str, bytes]:
        """The figures that the runs allow, as SVG files by name."""
        if "style" not in choices("figures"):
            return {}
        draw = chosen("figures", "style", "figures").drawn
        functions = parts("figure", "figures", "probes")
        drawn = {name: draw(figure, self) for name, figure in functions.items()}
        return {name: svg for name, svg in drawn.items() if svg is not None}

    @cached_property
    def lines(self) -> dict[str, dict[str, Any]]:
        """The numbers and words of each row, by its label; missing ones are None.

        Those of table.csv come first, up to `LAST_OF_CSV`; the others are for readers.
        """
        known: dict[str, Mapping[int, float]] = {label: {} for label in self.rows}
        if self.source:
            # Each loss was published once, so it counts as one seed.
            known |= {label: {0: loss} for label, loss in self.source.losses.items()}
        label = self.reference.label
        own = {label: row.losses for label, row in self.rows.items()}
        ours: Any = contrasts(table_of(own), label).to_dict("index")
        theirs: Any = contrasts(table_of(known), label).to_dict("index")
        return {each: _line(self, row, ours[each], theirs[each]) for each, row in self.rows.items()}

    @property
    def frame(self) -> pd.DataFrame:
        """`lines`, with missing values as NaN or NA."""
        return pd.DataFrame(self.lines.values()).astype(dict.fromkeys(_COUNTS, "Int64"))


def parts(part: str, *folders: str) -> dict[str, Callable[..., Any]]:
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


def _signs(source: Published | None) -> dict[tuple[str, str], str]:
    """Return the published relations, with their signs."""
    return {(a, b): sign for a, sign, b in source.relations} if source else {}


def build(
    runs: Sequence[Run],
    keys: Sequence[str],
    reference: str | None = None,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    """Arrange runs in rows, and compare these with the reference.

    Args:
        runs: at least one, in any order.
        keys: the factors that distinguish rows: pe, or keys such as optim.lr.
        reference: a row's label or its name. None for variants: qk_rope, or else a row that rotates
            only q and k, or nope for a kind without queries; no deltas if that is missing. None for
            named rows: softmax attention with qk_rope and as many key/value heads as query heads.
            Otherwise the first row.
        left_out: folders without a readable run, and the reason.
    Raises:
        ReportError: the runs may not share a table, or `reference` does not name one row.
    """
    rows = comparable(runs, keys)
    label = _label(reference, rows) if reference else standard(rows, keys)
    source = published.about(runs, keys)
    if source and source.losses and source.losses.keys().isdisjoint(rows):
        source = None

    losses = table_of({each: row.losses for each, row in rows.items()})
    ordered = {each: rows[each] for each in contrasts(losses, label).index}
    trained = losses[[each for each, row in ordered.items() if row.losses]]
    noise = noise_of(trained, paired=is_always_paired(runs))
    own = rows.get(label, Row(label, label, 0, []))
    return Report(keys, source, ordered, own, left_out, noise)


def is_always_paired(runs: Sequence[Run]) -> bool:
    """Return whether a campaign of these runs always uses the paired test."""
    return any(run.test == "paired" for run in runs)


def _label(reference: str, rows: Mapping[str, Row]) -> str:
    """Return the label of the row with this label or displayed name."""
    named = [label for label, row in rows.items() if reference in (label, row.name)]
    if len(named) == 1 or reference in rows:
        return reference if reference in rows else named[0]
    either = (dict.fromkeys([label, row.name]) for label, row in rows.items())
    there = ", ".join(" or ".join(names) for names in either)
    raise ReportError(
        f"--reference {reference} matches {len(named) or 'no'} rows. Available: {there}"
    )


def standard(rows: Mapping[str, Row], keys: Sequence[str]) -> str:
    """Return the label of the default reference, which may be missing from the rows."""
    configs = {label: row.runs[0].config for label, row in rows.items()}
    if list(keys) == ["pe"]:
        if "q" not in next(iter(configs.values())).attn.sites():
            return UNROTATED
        # Without the standard variant, use a row that rotates at the same sites.
        alike = [label for label, config in configs.items() if config.pe.rotate == ("q", "k")]
        return alike[0] if alike and REFERENCE not in rows else REFERENCE

    for label, config in configs.items() if ROW in keys else ():
        heads, kv_heads = config.model.num_attention_heads, config.model.num_key_value_heads
        is_softmax = isinstance(config.attn, SoftmaxConfig)
        if is_softmax and heads == kv_heads and config.pe.label == REFERENCE:
            return label
    return next(iter(rows))


def is_too_easy(runs: Iterable[Run]) -> bool:
    """Return whether all runs with answers solve almost all examples like those in training.

    Then neither losses nor matches show which is better (docs/paper/protocol.md, section 8).
    """
    answers = [run.probes.get("answers", {}).get(TEST) for run in runs]
    counts = [(sum(each["count"]), sum(each["right"])) for each in answers if each]
    shares = [right / count for count, right in counts if count]
    return bool(shares) and min(shares) >= 1 - ROOM


def has_other_seeds(report: Report, row: Row) -> bool:
    """Return whether a row's mean is over other seeds than the table's."""
    everywhere = {run.config.seed for run in report.runs if run.status == "finished"}
    mine = row.losses.keys()
    return bool(mine) and not mine == everywhere == mine & report.reference.losses.keys()


# -- the main table --------------------------------------------------------------------------------


def _line(
    report: Report, row: Row, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the line of a row, given its contrasts and the published ones."""
    run = row.runs[0]
    config = run.config
    cached, state = kept(config.attn, config.model, config.pe)
    label, reference = row.label, report.reference.label
    judged = report.against.get(label, {})
    decided = report.decided.get(label, {})
    own = report.alone.against.get(label, {})
    among = report.pairs.get((reference, label)) or report.pairs.get((label, reference)) or {}
    # Each pair occurs once, the better row first; the table's Δ is the row minus the reference.
    sign = 1 if among.get("b") == label else -1
    wide = sorted(sign * among[f"delta_wide_{end}"] for end in ("low", "high") if among)
    loss = ours["loss_mean"]
    bits = None if loss is None else bits_per_byte(loss, config, run.env)
    return {
        "group": run.group,
        "pe": config.pe.label,
        "rotate": "".join(config.pe.rotate),
        **{key: ours[key] for key in ("num_seeds", "loss_mean", "loss_sd", "delta")},
        **{key: judged.get(key) for key in ("delta_ci_low", "delta_ci_high")},
        "p_holm": judged.get("p_adjusted"),
        "verdict": _verdict(decided, row),
        "published_loss": theirs["loss_mean"],
        "published_delta": theirs["delta"],
        "p_adjusted": among.get("p_adjusted"),
        "family": f"{among['family']} pairs" if among else None,
        "delta_wide_low": wide[0] if among else None,
        "delta_wide_high": wide[1] if among else None,
        **{key: judged.get(key) for key in ("p_equivalent", *_SEEDS_NEEDED)},
        **{key: _value(config, key) for key in report.keys if key != "pe"},
        "kind": config.attn.label,
        "params": next((each.result["params"] for each in row.runs if each.result), None),
        "cached": cached,
        "state": state,
        "delta_ci_low_alone": own.get("delta_ci_low"),
        "delta_ci_high_alone": own.get("delta_ci_high"),
        "p_holm_alone": own.get("p_adjusted"),
        "verdict_alone": _verdict(report.alone.decided[row.label], row) if own else None,
        "perplexity": None if bits is None or loss is None else perplexity(loss),
        LAST_OF_CSV: bits,
        # For readers.
        "learning_rate": spelled(config, OWN_RATE),
        "word": decided.get("verdict"),
        "p": p_of(decided) if decided else None,
        "mark": " ‡" if has_other_seeds(report, row) else "",
        "wide_low": decided.get("delta_wide_low"),
        "wide_high": decided.get("delta_wide_high"),
        "name": row.name,
        "rotates": " ".join(config.pe.rotate),
        "attention": config.attn.kind,
        "rank": ours["rank"],
        "published_rank": theirs["rank"],
    }


def _verdict(judged: Pair, row: Row) -> str:
    """Return the verdict in words, or a row's status if it has no loss."""
    return f"{WORDS[judged['verdict']]} {row.mark}".rstrip() if judged else row.verdict


def _value(config: RunConfig, key: str) -> str | None:
    return config.row_name if key == ROW else spelled(config, key)


def p_of(judged: Pair) -> str:
    """Return the adjusted p-value of the test that gave the verdict, as text."""
    is_equivalent = judged["verdict"] == "equivalent"
    return spell_p(judged["p_equivalent" if is_equivalent else "p_adjusted"])


def main_table(report: Report) -> Table:
    """Return the table of rows; published columns only if there is a published table."""
    delta = f"Δ to {report.reference.name}"
    has_text = any(line[LAST_OF_CSV] for line in report.lines.values())
    columns = {
        Column("variant" if report.of_variants else ", ".join(report.keys), "name"): True,
        Column("rotates", "rotates"): True,
        Column("kind", "attention"): ROW in report.keys,
        Column("parameters", "params", ",d"): ROW in report.keys,
        Column("cached per token and layer", "cached", text=_cached): ROW in report.keys,
        Column("learning rate", "learning_rate"): has_own_rates(report.rows, report.keys),
        Column("seeds", "num_seeds", "d"): True,
        Column("loss (mean)", "loss_mean", ".4f", _loss): True,
        Column("perplexity", "perplexity", ".2f"): has_text,
        Column("bits per byte", LAST_OF_CSV, ".4f"): has_text,
        Column("sd over seeds", "loss_sd", ".4f"): True,
        Column(delta, "delta", "+.4f"): True,
        Column("95 % interval", "delta_ci_low", text=_interval): report.noise,
        Column(OWN, "delta_ci_low_alone", text=_interval_alone): report.is_pooled,
        Column("p (Holm)", "p"): report.noise,
        Column("verdict", "verdict", text=_marked): report.noise,
        Column("published loss", "published_loss", ".3f"): report.published,
        Column(f"published {delta}", "published_delta", "+.3f"): report.published,
        Column("rank", "rank", "d"): True,
        Column("published rank", "published_rank", "d"): report.published,
    }
    return Table([column for column, is_shown in columns.items() if is_shown], report.frame)


def _cached(line: Mapping[str, Any]) -> str:
    if pd.isna(line["cached"]):
        return ""
    numbers = {"{:,}": line["cached"], "{:,} fixed": line["state"]}
    return ", plus ".join(form.format(count) for form, count in numbers.items() if count) or "0"


def _loss(line: Mapping[str, Any]) -> str:
    """Return the mean, marked if it is over other seeds than the table's."""
    loss = number(line["loss_mean"], ".4f")
    return f"{loss}{line['mark']}" if loss else line["verdict"]


def _marked(line: Mapping[str, Any]) -> str:
    """Return a judged row's verdict, marked if the paired test would change it."""
    if pd.isna(line["p_holm"]):
        return ""
    mark = "" if line["verdict"] == line["verdict_alone"] else " †"
    return f"{line['verdict']}{mark}"


def _interval(line: Mapping[str, Any]) -> str:
    """Return a contrast's 95 % interval as text.

    If it excludes 0 but the verdict is open, the interval for the whole family follows.
    """
    low, high = line["delta_ci_low"], line["delta_ci_high"]
    said = interval(low, high)
    if said and low * high > 0 and line["word"] == "open":
        said += f" (adjusted: {interval(line['wide_low'], line['wide_high'])})"
    return said


def _interval_alone(line: Mapping[str, Any]) -> str:
    return interval(line["delta_ci_low_alone"], line["delta_ci_high_alone"])


# -- pairs -----------------------------------------------------------------------------------------


def relations_table(report: Report) -> Table:
    """Return a line for each published relation, with its test and its outcome."""
    lines = []
    for pair, own in zip(report.relations, report.alone.relations, strict=True):
        a = report.rows[pair["a"]].name
        b = report.rows[pair["b"]].name
        mark = "" if pair["outcome"] == own["outcome"] else " †"
        settling = f"; {_settling(pair)}" if pair["outcome"] == "open" else ""
        told = {
            "relation": f"{a} {pair['published']} {b}",
            "ours": f"{a} {pair['sign']} {b}",
            "interval": interval(pair["delta_ci_low"], pair["delta_ci_high"]),
            "own": interval(own["delta_ci_low"], own["delta_ci_high"]),
            "wide": interval(pair["delta_wide_low"], pair["delta_wide_high"]),
            "spelled_p": p_of(pair),
            "told": f"{pair['outcome']}{mark}{settling}",
        }
        lines.append({**pair, **told})

    size = lines[0]["family"] if lines else 0
    columns = [
        Column("published", "relation"),
        Column("ours", "ours"),
        Column("Δ", "delta", "+.4f"),
        Column("95 % interval", "interval", "s"),
        *([Column(OWN, "own", "s")] if report.is_pooled else []),
        *([Column(f"for all {size} (Bonferroni)", "wide", "s")] if size > 1 else []),
        Column("p (Holm)", "spelled_p", "s"),
        Column("seeds", "num_seeds", "d"),
        Column("outcome at this setting", "told"),
    ]
    return Table(columns, pd.DataFrame(lines))


def _settling(pair: Pair) -> str:
    """Say how an open published relation could be settled."""
    if pair["verdict"] != "open":
        return "a difference is shown, but not whether it exceeds the margin"
    low, high = (pair[key] and pair[key] - pair["num_seeds"] for key in _SEEDS_NEEDED)
    if low is None:
        return f"settling it needs more than {MOST_SEEDS} seeds"
    count = span((low, high)) if high else f"{low} to more than {MOST_SEEDS - pair['num_seeds']}"
    told = f"{count} more {'seed' if count == '1' else 'seeds'} would settle it in 4 of 5 cases"
    if pair["published"] == SIGNS["equivalent"]:
        return f"{told}; a difference may then still be below the margin"
    return told


def pairs_csv(report: Report) -> str:
    """Return pairs.csv: every pair of rows, judged together; delta is b's loss minus a's.

    The last columns are from the paired t test.
    """
    table = pd.DataFrame(report.pairs.values())
    alone = pd.DataFrame(report.alone.pairs.values())[["a", "b", *_OF_PAIRS_ALONE]]
    table = table.merge(alone, on=["a", "b"], suffixes=("", "_alone"))
    columns = [*_OF_PAIRS, *(f"{key}_alone" for key in _OF_PAIRS_ALONE)]
    return csv_of(table[columns].astype(dict.fromkeys(_SEEDS_NEEDED, "Int64")))


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
