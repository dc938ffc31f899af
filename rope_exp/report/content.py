"""What a report shows: a comparison, the reference, and what the losses say beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rope_exp.config.kinds import SoftmaxConfig
from rope_exp.config.tasks import TaskFacts
from rope_exp.evidence import published
from rope_exp.evidence.comparable import ROW, Row, comparable
from rope_exp.evidence.contrasts import Contrast, Losses, compare
from rope_exp.evidence.layout import Noise, measure
from rope_exp.evidence.matches import is_too_easy
from rope_exp.evidence.published import Claim, Published
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.evidence.significance import Judged, all_pairs, judge


@dataclass(frozen=True)
class Line(Row):
    """A row, and what its losses and the published ones say."""

    ours: Contrast
    theirs: Contrast  # without numbers where it is not published


@dataclass(frozen=True)
class Relation:
    """A published relation between two rows, and what the runs say of it."""

    published: str  # > or ≈
    judged: Judged
    outcome: str  # confirmed, contradicted or open


@dataclass(frozen=True)
class Report:
    """All that tables, sentences and figures are made from."""

    keys: Sequence[str]  # the factors that tell rows apart
    published: Published | None  # the table that has such rows
    claim: Claim | None  # what is published of such rows without numbers
    rows: Mapping[str, Line]  # by label, best first
    reference: Row  # without runs where the comparison has none of it
    left_out: Sequence[str]  # folders that hold no run
    noise: Noise | None  # None with fewer than two seeds
    against: Mapping[str, Judged]  # of each other row: (reference, row), judged as one family
    pairs: Mapping[tuple[str, str], Judged]  # all of them, judged as one family
    relations: Sequence[Relation]  # the published ones, judged as one family

    @property
    def runs(self) -> list[Run]:
        """Every run, by row and seed."""
        return [run for row in self.rows.values() for run in row.runs]

    @property
    def is_pooled(self) -> bool:
        """Whether an interval rests on the noise of other pairs, too, and not on its own alone."""
        return self.noise is not None and self.noise.method == "pooled" and len(self.pairs) > 1

    @cached_property
    def alone(self) -> "Report":
        """The same report with each pair judged by its own differences alone, the paired t.

        It takes less for granted than the pooled residual does, and finds less with few seeds.
        """
        if self.noise is None:
            return self
        noise = replace(self.noise, method="paired")
        losses = _losses(self.rows)
        pairs = judge(losses, list(self.pairs), noise)
        return replace(
            self,
            noise=noise,
            against=_against(losses, self.reference.label, noise),
            pairs={(pair.a, pair.b): pair for pair in pairs},
            # Where another table decides on these, there are none here.
            relations=self.relations and _relations(self.rows, noise, self.source),
        )

    def answers(self, probe: str) -> dict[str, list[Any]]:
        """Return what the runs of each row answered to a probe, of those that were asked."""
        found = {
            label: [run.probes[probe] for run in row.runs if probe in run.probes]
            for label, row in self.rows.items()
        }
        return {label: answers for label, answers in found.items() if answers}

    @property
    def of_variants(self) -> bool:
        """Whether a row is a variant, and nothing else."""
        return list(self.keys) == ["pe"]

    @property
    def of_rows(self) -> bool:
        """Whether rows are told by their names, and may differ in kind and size."""
        return ROW in self.keys

    @property
    def source(self) -> Published | Claim | None:
        """What is published of such rows, with numbers or without."""
        return self.published or self.claim

    @property
    def task(self) -> TaskFacts | None:
        """What is known of the generated data that all runs have in common; None of text."""
        kinds = {run.config.data.kind: run.config.data.task for run in self.runs}
        return next(iter(kinds.values())) if len(kinds) == 1 else None

    @property
    def unit(self) -> str:
        """What losses are counted in."""
        return " or ".join(dict.fromkeys(run.config.data.unit for run in self.runs))

    @property
    def margin_unit(self) -> str:
        """What the margin is counted in."""
        return "nats" if self.unit.startswith("nats") else f"of {self.unit}"

    @property
    def groups(self) -> str:
        """The groups that the runs come from."""
        return ", ".join(sorted({run.group for run in self.runs}))


def build(
    runs: Sequence[Run],
    keys: Sequence[str],
    reference: str | None = None,
    left_out: Sequence[str] = (),
) -> Report:
    """Arrange runs in rows, and hold these against the reference.

    Args:
        runs: at least one, in any order.
        keys: what tells rows apart: pe, or keys such as optim.lr.
        reference: a row's label or its name; None: qk_rope, or else a row that rotates q and k
            alone, or nope where a kind has no queries, and no deltas if no variant is that. Where
            rows are named: one of softmax with that and a key/value head for each query's. Else the
            first.
        left_out: folders that hold no run.
    Raises:
        ReportError: the runs may not share a table, or give no such row.
    """
    rows = comparable(runs, keys)
    label = _label(reference, rows) if reference else standard(rows, keys)
    source = _published(runs, keys)
    if source and source.losses.keys().isdisjoint(rows):
        source = None
    claim = _claim(runs, keys)

    lines = _lines(rows, label, source)
    losses = _losses(lines)
    noise = measure(losses)
    if noise is not None and by_own_deviation(runs):
        noise = replace(noise, method="paired")
    pairs = judge(losses, all_pairs(list(losses)), noise)
    return Report(
        keys,
        source,
        claim,
        lines,
        lines.get(label, Row(label, label, 0, [])),
        left_out,
        noise=noise,
        against=_against(losses, label, noise),
        pairs={(pair.a, pair.b): pair for pair in pairs},
        relations=_relations(lines, noise, source or claim),
    )


def _label(reference: str, rows: Mapping[str, Row]) -> str:
    """Return the label of the row that a person means, who may name it as tables do."""
    if reference in rows:
        return reference
    named = [label for label, row in rows.items() if reference == row.name]
    if len(named) != 1:
        either = (dict.fromkeys([label, row.name]) for label, row in rows.items())
        there = ", ".join(" or ".join(names) for names in either)
        raise ReportError(
            f"--reference {reference} names {len(named) or 'no'} rows; there is {there}"
        )
    return named[0]


def by_own_deviation(runs: Sequence[Run]) -> bool:
    """Return whether a campaign of these runs asks for each pair's own deviation, always."""
    return any(run.test == "paired" for run in runs)


def refer(report: Report, label: str) -> Report:
    """Return the same report with its differences to another row, judged as `build` judges them.

    What does not depend on the reference (noise, all pairs, the published relations) stays.
    """
    lines = _lines(report.rows, label, report.published)
    against = _against(_losses(lines), label, report.noise)
    return replace(report, rows=lines, reference=lines[label], against=against)


def standard(rows: Mapping[str, Row], keys: Sequence[str]) -> str:
    """Return the row that differences are against, unless told otherwise; it may not be there."""
    if list(keys) == ["pe"]:
        sites = next(iter(rows.values())).runs[0].config.attn.sites()
        if "q" not in sites:
            return published.UNROTATED
        # Where no row is the standard variant itself, one that rotates at the same sites.
        alike = [label for label, row in rows.items() if _rotates_qk(row)]
        return alike[0] if alike and published.REFERENCE not in rows else published.REFERENCE
    plain = [label for label, row in rows.items() if ROW in keys and _is_plain(row)]
    return [*plain, *rows][0]


def _rotates_qk(row: Row) -> bool:
    """Whether a row rotates queries and keys, and nothing else."""
    return row.runs[0].config.pe.rotate == ("q", "k")


def _is_plain(row: Row) -> bool:
    """Whether a row is LLaMA's own attention, of as many key/value heads as queries'."""
    config = row.runs[0].config
    grouped = config.model.num_key_value_heads != config.model.num_attention_heads
    is_softmax = isinstance(config.attn, SoftmaxConfig)
    return is_softmax and config.pe.label == published.REFERENCE and not grouped


def _published(runs: Sequence[Run], keys: Sequence[str]) -> Published | None:
    """Return the published table that has such rows; None where there is none."""
    if not _from_the_start(runs):
        return None
    kinds = {run.config.data.kind for run in runs}
    if len(kinds) == 1 and list(keys) == ["pe"] and published.TASKS.keys() >= kinds:
        return published.TASKS[kinds.pop()]
    if not all(map(_predicts_text, runs)):
        return None
    is_sequel = all(run.config.model.name in published.SEQUEL_MODELS for run in runs)
    if list(keys) == ["pe"]:
        is_softmax = all(isinstance(run.config.attn, SoftmaxConfig) for run in runs)
        return published.TABLE if is_softmax and not is_sequel else None
    return published.SEQUEL if list(keys) == [ROW] and is_sequel else None


def _predicts_text(run: Run) -> bool:
    return run.config.data.task is None and run.config.train.objective == "causal"


def _from_the_start(runs: Sequence[Run]) -> bool:
    """Whether all began as what is published did, and none with the weights of a finished run."""
    return not any(run.config.init_weights for run in runs)


def _claim(runs: Sequence[Run], keys: Sequence[str]) -> Claim | None:
    """Return what is published of such rows without numbers; None where nothing is."""
    if not _from_the_start(runs):
        return None
    kinds = {run.config.data.kind for run in runs}
    return published.CLAIMS.get(kinds.pop()) if len(kinds) == 1 and list(keys) == ["pe"] else None


def _lines(rows: Mapping[str, Row], label: str, source: Published | None) -> dict[str, Line]:
    """Hold each row against one of them, best first."""
    known: dict[str, Losses] = {each: {} for each in rows}
    if source is not None:
        # Published once, as if by one seed.
        known |= {each: {0: loss} for each, loss in source.losses.items()}
    theirs = compare(known, label)

    lines = {}
    for each, ours in compare({each: row.losses for each, row in rows.items()}, label).items():
        row = rows[each]
        lines[each] = Line(row.label, row.name, row.number, row.runs, ours, theirs[each])
    return lines


def _losses(lines: Mapping[str, Line]) -> dict[str, Losses]:
    return {each: line.losses for each, line in lines.items() if line.losses}


def _against(losses: Mapping[str, Losses], label: str, noise: Noise | None) -> dict[str, Judged]:
    contrasts = [(label, each) for each in losses if each != label]
    return {pair.b: pair for pair in judge(losses, contrasts, noise)}


def _relations(
    rows: Mapping[str, Line], noise: Noise | None, source: Published | Claim | None
) -> list[Relation]:
    """Judge what is published of the rows that are here."""
    if source is None:
        return []
    signs = {(a, b): sign for a, sign, b in source.relations}
    found = []
    for pair in judge(_losses(rows), list(signs), noise):
        sign = signs[pair.a, pair.b]
        is_open = is_too_easy([*rows[pair.a].runs, *rows[pair.b].runs])
        outcome = "open; too easy a task" if is_open else pair.outcome(sign)
        found.append(Relation(sign, pair, outcome))
    return found
