"""Formatting of values, and tables of a frame: its columns for readers, in Markdown."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from rope_exp import published
from rope_exp.comparable import ROW, Row, comparable
from rope_exp.config import RunConfig
from rope_exp.published import Published
from rope_exp.rows import TEST, Facts
from rope_exp.runs import ReportError, Run
from rope_exp.sections import SoftmaxConfig
from rope_exp.stats import Contrast, Judged, Losses, Noise, compare, judge, measure

NOTHING = "—"


class Column(NamedTuple):
    """A column of a frame, for readers.

    Attributes:
        heading: above it.
        key: the column of the frame that it shows, and that it sorts by.
        form: the format of its numbers; empty: text, which is aligned left.
        text: returns a cell's text from its line of the frame, instead of `form`.
    """

    heading: str
    key: str
    form: str = ""
    text: Callable[[Mapping[Any, Any]], str] | None = None

    def spell(self, line: Mapping[Any, Any]) -> str:
        """Return a cell's text; a dash for a missing value."""
        value = self.text(line) if self.text else number(line[self.key], self.form)
        return value or NOTHING


def number(value: Any, form: str = "") -> str:
    """Return a value as text: empty if it is missing, and 0 without a sign."""
    if pd.isna(value):
        return ""
    return format(value, form if value else form.removeprefix("+"))


def interval(low: float, high: float, form: str = "+.4f") -> str:
    """Return an interval as text; empty if it is missing."""
    return "" if pd.isna(low) else f"{low:{form}} to {high:{form}}"


def csv_of(frame: pd.DataFrame, *, signed: bool = False) -> str:
    """Return a frame as CSV, with six decimals and empty cells for missing values.

    A p-value that would read 0.000000 has three significant digits.

    Args:
        signed: whether differences (`delta...`) that are positive have a plus.
    """
    told = frame.copy()
    for name in told.columns[told.dtypes == "float64"]:
        form = "+.6f" if signed and "delta" in name else ".6f"
        is_p = name == "p" or name.startswith("p_")
        told[name] = [f"{x:.2e}" if is_p and 0 < x < 5e-7 else number(x, form) for x in told[name]]
    return told.to_csv(index=False)


def cells(columns: Sequence[Column], frame: pd.DataFrame) -> list[list[str]]:
    """Return the headings, and then the cells of each line, as text."""
    lines = frame.to_dict("records")
    headings = [column.heading for column in columns]
    return [headings, *([column.spell(line) for column in columns] for line in lines)]


def sides(columns: Iterable[Column]) -> str:
    """Return the alignment of columns: "<" for text, and ">" for numbers."""
    return "".join(">" if column.form else "<" for column in columns)


def markdown_of(columns: Sequence[Column], frame: pd.DataFrame) -> str:
    """Return columns of a frame as a Markdown table."""
    return markdown_lines(cells(columns, frame), sides(columns))


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Return a whole frame as a Markdown table: floats by `form`, missing values as a dash."""
    lines = [list(map(str, frame.columns))]
    for values in frame.itertuples(index=False):
        lines.append([NOTHING if pd.isna(x) else _spelled(x, form) for x in values])
    return markdown_lines(lines, "<" * len(frame.columns))


def markdown_lines(lines: Sequence[Sequence[str]], aligned: str) -> str:
    """Return a Markdown table: headings, then cells; `aligned` has "<" or ">" for each column."""
    rule = ["---" if side == "<" else "---:" for side in aligned]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def span(values: Iterable[float], form: str = "") -> str:
    """Format values as "least to greatest", a single value as itself, and none as empty text."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys(format(value, form) for value in (*ends[:1], *ends[-1:])))


def seeds(counts: Iterable[int]) -> str:
    """Return the number of seeds as text, or its range if rows differ."""
    spelled = span(counts)
    return "one seed" if spelled == "1" else f"{spelled} seeds"


def corpus_name(config: RunConfig) -> str:
    """Return the short name of a run's corpus."""
    name = str(config.data.name)
    return {"wikipedia-en-good-featured": "English"}.get(name, name)


def setting_name(config: RunConfig) -> str:
    """Return the corpus, tokens and warmup steps of a run: `English, 2M tokens, warmup 100`."""
    # Two digits are enough to distinguish token budgets.
    tokens = millions(float(f"{config.train.num_tokens:.2g}"))
    return f"{corpus_name(config)}, {tokens} tokens, warmup {config.num_warmup_steps}"


def millions(count: float) -> str:
    """Format a number of tokens or parameters in millions or billions."""
    if count >= 999.5e6:
        return f"{count / 1e9:.3g}B"
    return f"{count / 1e6:.3g}M"


def _spelled(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)


# If both rows answer less than this share, or all but it, they cannot be distinguished.
ROOM = 0.01


def count_matches(run: Run, split: str, first: float = -inf, last: float = inf) -> tuple[int, int]:
    """Return the number of examples of these spans, and the number that a run answered right."""
    answers = run.probes.get("answers", {}).get(split)
    if answers is None:
        return 0, 0
    columns = zip(answers["span"], answers["count"], answers["right"], strict=True)
    inside = [(count, right) for span, count, right in columns if first <= span <= last]
    return sum(count for count, _ in inside), sum(right for _, right in inside)


def is_too_easy(runs: Iterable[Run]) -> bool:
    """Return whether all runs with answers solve almost all examples like those in training.

    Then neither losses nor matches show which is better (docs/protocol.md, section 8).
    """
    counts = [count_matches(run, TEST) for run in runs]
    shares = [right / count for count, right in counts if count]
    return bool(shares) and min(shares) >= 1 - ROOM


@dataclass(frozen=True)
class Line(Row):
    """A row, with the contrasts of its losses and of the published ones."""

    ours: Contrast
    theirs: Contrast  # without numbers if unpublished


@dataclass(frozen=True)
class Relation:
    """A published relation between two rows, and its outcome in our runs."""

    published: str  # > or ≈
    judged: Judged
    outcome: str  # confirmed, contradicted or open


# Compared by identity, so that charts of a report can be cached.
@dataclass(frozen=True, eq=False)
class Report:
    """The input of all tables, sentences and figures."""

    keys: Sequence[str]  # the factors that distinguish rows
    source: Published | None  # what was published about such rows
    rows: Mapping[str, Line]  # by label, best first
    reference: Row  # without runs if the comparison has none
    left_out: Mapping[str, str]  # folders without a readable run, and the reason
    noise: Noise | None  # None with fewer than two seeds
    relations: Sequence[Relation]  # the published ones; one family

    @property
    def runs(self) -> list[Run]:
        """All runs, by row and seed."""
        return [run for row in self.rows.values() for run in row.runs]

    @cached_property
    def against(self) -> dict[str, Judged]:
        """The pair (reference, row) by the other row; one family."""
        losses = _losses(self.rows)
        label = self.reference.label
        contrasts = [(label, each) for each in losses if each != label]
        return {pair.b: pair for pair in judge(losses, contrasts, self.noise)}

    @cached_property
    def decided(self) -> dict[str, Judged]:
        """The test that decides between the reference and each row, as `against`.

        A published relation is decided by its own family, which is the primary one. So no row is
        called better here that is open there.
        """
        reference = self.reference.label
        primary = {(each.judged.a, each.judged.b): each.judged for each in self.relations}
        primary |= {(pair.b, pair.a): pair.reversed for pair in primary.values()}
        return {
            label: primary.get((reference, label), judged) for label, judged in self.against.items()
        }

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Judged]:
        """All pairs; one family."""
        losses = _losses(self.rows)
        judged = judge(losses, list(itertools.combinations(losses, 2)), self.noise)
        return {(pair.a, pair.b): pair for pair in judged}

    @property
    def num_relations(self) -> int:
        """The size of the family of published relations, also of those not shown."""
        return len(_relations(self.rows, self.noise, self.source))

    @property
    def is_pooled(self) -> bool:
        """True if the intervals also use the noise of other pairs."""
        return self.noise is not None and self.noise.method == "pooled" and len(self.pairs) > 1

    @cached_property
    def alone(self) -> "Report":
        """The same report with every pair judged by the paired t test.

        This assumes less than the pooled residual, and has less power with few seeds.
        """
        if self.noise is None:
            return self
        noise = replace(self.noise, method="paired")
        # Relations that another table decides stay left out.
        here = {(each.judged.a, each.judged.b) for each in self.relations}
        relations = [
            each
            for each in _relations(self.rows, noise, self.source)
            if (each.judged.a, each.judged.b) in here
        ]
        return replace(self, noise=noise, relations=relations)

    def answers(self, probe: str) -> dict[str, list[Any]]:
        """Return the answers to a probe by row, for rows with any."""
        found = {
            label: [run.probes[probe] for run in row.runs if probe in run.probes]
            for label, row in self.rows.items()
        }
        return {label: answers for label, answers in found.items() if answers}

    @property
    def of_variants(self) -> bool:
        """True if rows differ only in their variant."""
        return list(self.keys) == ["pe"]

    @property
    def of_rows(self) -> bool:
        """True if rows are distinguished by name, and may differ in kind and size."""
        return ROW in self.keys

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
    source = _published(runs, keys)
    if source and source.losses and source.losses.keys().isdisjoint(rows):
        source = None

    lines = _lines(rows, label, source)
    noise = noise_of(_losses(lines), runs)
    standard_row = lines.get(label, Row(label, label, 0, []))
    relations = _relations(lines, noise, source)
    return Report(keys, source, lines, standard_row, left_out, noise, relations)


def _label(reference: str, rows: Mapping[str, Row]) -> str:
    """Return the label of the row with this label or displayed name."""
    if reference in rows:
        return reference
    named = [label for label, row in rows.items() if reference == row.name]
    if len(named) != 1:
        either = (dict.fromkeys([label, row.name]) for label, row in rows.items())
        there = ", ".join(" or ".join(names) for names in either)
        raise ReportError(
            f"--reference {reference} matches {len(named) or 'no'} rows. Available: {there}"
        )
    return named[0]


def noise_of(losses: Mapping[str, Losses] | pd.DataFrame, runs: Sequence[Run]) -> Noise | None:
    """Return the noise of these rows, with the method of the runs' campaign; see `measure`."""
    noise = measure(losses)
    if noise is not None and by_own_deviation(runs):
        return replace(noise, method="paired")
    return noise


def by_own_deviation(runs: Sequence[Run]) -> bool:
    """Return whether a campaign of these runs always uses the paired test."""
    return any(run.test == "paired" for run in runs)


def standard(rows: Mapping[str, Row], keys: Sequence[str]) -> str:
    """Return the label of the default reference, which may be missing from the rows."""
    if list(keys) == ["pe"]:
        sites = next(iter(rows.values())).runs[0].config.attn.sites()
        if "q" not in sites:
            return published.UNROTATED
        # Without the standard variant, use a row that rotates at the same sites.
        alike = [label for label, row in rows.items() if row.runs[0].config.pe.rotate == ("q", "k")]
        return alike[0] if alike and published.REFERENCE not in rows else published.REFERENCE
    plain = [label for label, row in rows.items() if ROW in keys and _is_plain(row)]
    return [*plain, *rows][0]


def _is_plain(row: Row) -> bool:
    """Return whether a row is LLaMA's attention, with as many key/value heads as query heads."""
    config = row.runs[0].config
    grouped = config.model.num_key_value_heads != config.model.num_attention_heads
    is_softmax = isinstance(config.attn, SoftmaxConfig)
    return is_softmax and config.pe.label == published.REFERENCE and not grouped


def _published(runs: Sequence[Run], keys: Sequence[str]) -> Published | None:
    """Return what was published about such rows, or None."""
    # The published runs started from random weights.
    if any(run.config.init_weights for run in runs):
        return None
    kinds = {run.config.data.kind for run in runs}
    if len(kinds) == 1 and list(keys) == ["pe"] and published.TASKS.keys() >= kinds:
        return published.TASKS[kinds.pop()]
    if any(run.config.data.task or run.config.train.objective != "causal" for run in runs):
        return None
    is_sequel = all(run.config.model.name in published.SEQUEL_MODELS for run in runs)
    if list(keys) == ["pe"]:
        is_softmax = all(isinstance(run.config.attn, SoftmaxConfig) for run in runs)
        return published.TABLE if is_softmax and not is_sequel else None
    return published.SEQUEL if list(keys) == [ROW] and is_sequel else None


def _lines(rows: Mapping[str, Row], label: str, source: Published | None) -> dict[str, Line]:
    """Compare each row with the row `label`; best first."""
    known: dict[str, Losses] = {each: {} for each in rows}
    if source is not None:
        # Each loss was published once, so it counts as one seed.
        known |= {each: {0: loss} for each, loss in source.losses.items()}
    theirs = compare(known, label)

    lines = {}
    for each, ours in compare({each: row.losses for each, row in rows.items()}, label).items():
        row = rows[each]
        lines[each] = Line(row.label, row.name, row.number, row.runs, ours, theirs[each])
    return lines


def _losses(lines: Mapping[str, Line]) -> dict[str, Losses]:
    return {each: line.losses for each, line in lines.items() if line.losses}


def _relations(
    rows: Mapping[str, Line], noise: Noise | None, source: Published | None
) -> list[Relation]:
    """Judge the published relations between the rows that are here."""
    if source is None:
        return []
    signs = {(a, b): sign for a, sign, b in source.relations}
    found = []
    for pair in judge(_losses(rows), list(signs), noise):
        sign = signs[pair.a, pair.b]
        is_open = is_too_easy([*rows[pair.a].runs, *rows[pair.b].runs])
        outcome = "open; the task is too easy" if is_open else pair.outcome(sign)
        found.append(Relation(sign, pair, outcome))
    return found
