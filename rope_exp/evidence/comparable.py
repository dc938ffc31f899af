"""Which runs may be compared: those that are equal in everything numeric but some named factors.

A factor is a key of the config, or a section of keys: `pe` and `seed` for a table of variants,
`optim.lr` and `seed` for a sweep of learning rates, `model` and `seed` for sizes. A row is the
runs that agree in every factor but the seed, a block the runs of one seed. What may not be
compared is refused in a `ReportError`, one sentence that names the folders. No torch.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from rope_exp.config.run import RunConfig, differing_keys
from rope_exp.evidence.runs import ReportError, Run, Status
from rope_exp.run.folder import CONFIG
from rope_exp.system.errors import show

FACTORS = ("pe", "seed")


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone, by seed."""

    label: str
    name: str
    runs: tuple[Run, ...]

    @property
    def losses(self) -> dict[int, float]:
        """Validation losses in nats per token by seed, of finished runs alone."""
        return {run.config.seed: run.loss for run in self.runs if run.loss is not None}

    @property
    def status(self) -> Status:
        """finished: at least one run is; diverged: none is, and one has."""
        best: tuple[Status, ...] = ("finished", "diverged", "unfinished")
        return min((run.status for run in self.runs), key=best.index)

    @property
    def rotate(self) -> tuple[str, ...]:
        """The sites that rotate."""
        return self.runs[0].config.pe.rotate


@dataclass(frozen=True)
class Comparison:
    """Rows by label; the factors tell them and their runs apart, and nothing else numeric does."""

    factors: tuple[str, ...]
    rows: Mapping[str, Row]

    @property
    def runs(self) -> list[Run]:
        """Every run, by label and seed."""
        return [run for row in self.rows.values() for run in row.runs]

    @property
    def of_variants(self) -> bool:
        """Whether a row is a variant, and nothing else."""
        return set(self.factors) == set(FACTORS)


class _Fact(NamedTuple):
    """What result.json says of something that must be equal where its causes are."""

    key: str
    complaint: str
    causes: tuple[str, ...]  # keys of the config, or sections
    is_known: Callable[[Run], bool]  # of which runs it can be asked


def _has_fixed_frequencies(run: Run) -> bool:
    # Learned frequencies are parameters: their variant counts more, and its weights hash differently.
    return not run.config.pe.trainable


def _has_finished(run: Run) -> bool:
    # A diverged run has read only some of the tokens.
    return run.status == "finished"


_VOCABULARY = ("data", "tokenizer")
_BUDGET = ("train.num_steps", "train.global_batch_size", "train.seq_len")
_FACTS = (
    _Fact("data_sha256", "read different corpora", _VOCABULARY, bool),
    _Fact(
        "init_sha256",
        "began at different weights",
        ("seed", "model", *_VOCABULARY),
        _has_fixed_frequencies,
    ),
    _Fact("order_sha256", "saw different tokens", ("seed", *_BUDGET, *_VOCABULARY), _has_finished),
    _Fact("params", "differ in parameters", ("model", *_VOCABULARY), _has_fixed_frequencies),
)


def comparable(runs: Sequence[Run], factors: tuple[str, ...] = FACTORS) -> Comparison:
    """Arrange runs in rows and blocks, or refuse them.

    Args:
        runs: at least one, in any order.
        factors: what may differ; every other numeric key must be equal.
    Raises:
        ReportError: naming two runs and what differs between them, or a factor that is no key.
    """
    _check_factors(runs, factors)

    members = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.config.seed, run.where)):
        members[_spelled(run, factors, run.config.pe.label)].append(run)

    rows = {}
    for label, of_row in sorted(members.items()):
        name = _spelled(of_row[0], factors, of_row[0].variant_name)
        rows[label] = Row(label, name, tuple(of_row))

    _check_places(rows)
    _check_configs(rows, factors)
    comparison = Comparison(factors, rows)
    for fact in _FACTS:
        _check_fact(comparison, fact)
    return comparison


def value_of(config: RunConfig, factor: str) -> str:
    """Return a factor's value in a word: a preset by its name, a key as the command line has it."""
    value = attrgetter(factor)(config)
    return str(value.name) if is_dataclass(value) else show(value)


def _spelled(run: Run, factors: Sequence[str], variant: str) -> str:
    """Return what tells a row from the others: vo_rope, optim.lr=0.003, or several of these."""
    words = []
    for factor in factors:
        if factor == "pe":
            words.append(variant)
        elif factor != "seed":
            words.append(f"{factor}={value_of(run.config, factor)}")
    return " ".join(words)


# -- refusals --------------------------------------------------------------------------------------


def _check_factors(runs: Sequence[Run], factors: Sequence[str]) -> None:
    """Each factor is a key that can change a number."""
    for run in runs:
        values = run.config.numeric_dict()
        for factor in factors:
            if without(values, (factor,)) == values:
                raise ReportError(
                    f"{factor} is no key by which runs can differ in their numbers: see "
                    f"{run.folder / CONFIG}"
                )


def _check_places(rows: Mapping[str, Row]) -> None:
    """Each row has each seed once, in the folder that is named after the run."""
    for row in rows.values():
        for first, second in pairwise(row.runs):
            if first.config.seed == second.config.seed:
                raise ReportError(
                    f"{first.folder} and {second.folder} are both "
                    f"{row.label}-s{first.config.seed}; keep one of them"
                )
        for run in row.runs:
            expected = f"{run.config.pe.label}/seed{run.config.seed}"
            if run.where != f"{run.group}/{expected}":
                raise ReportError(
                    f"{run.folder} holds a run that belongs in {expected}: moved, or its config "
                    "edited"
                )


def _check_configs(rows: Mapping[str, Row], factors: tuple[str, ...]) -> None:
    """Rows differ in the factors alone, and a label has one meaning."""
    runs = [run for row in rows.values() for run in row.runs]
    for run in runs:
        if keys := _differing(runs[0], run, factors):
            raise ReportError(
                f"{runs[0].folder} and {run.folder} are no rows of one group ({keys})"
            )
    for row in rows.values():
        for run in row.runs:
            if keys := _differing(row.runs[0], run, ("seed",)):
                raise ReportError(
                    f"{row.runs[0].folder} and {run.folder} are two variants under one name ({keys})"
                )


def _differing(first: Run, second: Run, factors: tuple[str, ...]) -> str:
    old, new = (without(run.config.numeric_dict(), factors) for run in (first, second))
    return "; ".join(differing_keys(old, new))


def _check_fact(comparison: Comparison, fact: _Fact) -> None:
    """A fact is equal in all runs that agree in the factors that it follows from."""
    deciding = [
        factor
        for factor in comparison.factors
        if any(_overlap(factor, cause) for cause in fact.causes)
    ]
    first_of: dict[tuple[Any, ...], Run] = {}
    for run in comparison.runs:
        if run.result is None or not fact.is_known(run):
            continue

        block = tuple(attrgetter(factor)(run.config) for factor in deciding)
        first = first_of.setdefault(block, run)
        if first.result is not None and first.result[fact.key] != run.result[fact.key]:
            raise ReportError(
                f"{first.folder} and {run.folder} {fact.complaint}, and cannot be compared "
                f"({fact.key} {first.result[fact.key]!s:.12} and {run.result[fact.key]!s:.12})"
            )


def _overlap(factor: str, cause: str) -> bool:
    """Whether one of two keys is the other, or the section that it stands in."""
    return f"{factor}.".startswith(f"{cause}.") or f"{cause}.".startswith(f"{factor}.")


def without(values: Mapping[str, Any], factors: tuple[str, ...]) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in values.items():
        below = tuple(f.removeprefix(f"{key}.") for f in factors if f.startswith(f"{key}."))
        if key not in factors:
            left[key] = without(value, below) if below else value
    return left
