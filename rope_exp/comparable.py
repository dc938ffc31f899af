"""Comparable runs: equal in every numeric key except some named factors.

A factor is a key that can change a number, or a section of keys: `pe` and `seed` for a table of
variants. The factor `row` is a name given by a campaign or an experiment (row_name); it covers
variant, kind of attention and size at once. A row is the runs that agree in every factor but the
seed; a block is the runs of one seed. Runs that must not be compared raise a `ReportError`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from rope_exp import machine
from rope_exp.config import RunConfig, differing_keys
from rope_exp.errors import show
from rope_exp.folder import ReportError, Run, Status
from rope_exp.identity import metadata_of, numeric_values
from rope_exp.sections import AttentionConfig, PeConfig, SoftmaxConfig

# The factor for rows by name, and the sections of the config that a name covers.
ROW = "row"
OF_ROW = ("pe", "attn", "model")
OWN_RATE = "optim.lr"  # each row of a campaign may have its own value of this key
# As a factor, it gives runs of one seed different orders of tokens: they form no blocks.
ORDER = "data.seed"
SEEDS = ("seed", ORDER)  # runs of a block share these keys
# Surroundings of a run (machine.MARKED) that must agree within a block. Other differences
# are marked (paper/protocol.md).
REFUSED_WITHIN_A_BLOCK = ("torch", "num_threads", "world_size")
MIXED = "(mixed)"  # marks rows of blocks that differ in these, if the user allows it

# Masking adds an id to the vocabulary.
_IDS = ("data", "tokenizer", "train.objective")
_BEGINNING = ("seed", "init_weights", "model", "attn", *_IDS)
_BUDGET = ("train.num_steps", "train.global_batch_size", "train.seq_len", "train.stages")
# The keys that give a variant parameters of its own, and what else determines their number.
_OWN_PARAMETERS = metadata_of(PeConfig, "own_parameters", "pe.")
# A fact of result.json must be equal in runs that agree in the keys that determine it.
_FACTS = (
    ("data_sha256", "read different corpora", ("data", "tokenizer")),
    ("shared_init_sha256", "started from different weights", _BEGINNING),
    ("order_sha256", "saw different tokens", ("seed", *_BUDGET, *_IDS)),
    ("params", "differ in parameters", ("model", "attn", *_OWN_PARAMETERS, *_IDS)),
)
# The default references for differences: the standard variant; for a kind of attention without
# queries, the variant that rotates nothing.
REFERENCE = "qk_rope"
UNROTATED = "nope"


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed only, by seed."""

    label: str
    name: str
    number: int  # its place among the rows
    runs: list[Run]
    is_mixed: bool = False  # a run shares a block with one that was computed in another way

    @property
    def losses(self) -> dict[int, float]:
        """The validation losses of finished runs, by seed."""
        return {run.config.seed: run.loss for run in self.runs if run.loss is not None}

    @property
    def status(self) -> str:
        """Diverged, or unfinished if no run has ended; empty for a row with a loss."""
        best = min((run.status for run in self.runs), key=get_args(Status).index)
        return "" if best == "finished" else best

    @property
    def mark(self) -> str:
        """A suffix for a verdict: `(1 diverged)` if some seeds did, `(mixed)`; else empty."""
        count = sum(run.status == "diverged" for run in self.runs)
        diverged = f"({count} diverged)" if count and self.losses else ""
        return " ".join(filter(None, (diverged, MIXED if self.is_mixed else "")))


class Published(NamedTuple):
    """A published table, or a claim about rows without numbers; empty: nothing was published."""

    source: str = ""  # the citation
    short: str = ""  # the same for fonts without Chinese
    setting: str = ""  # the known facts about its training
    # In nats per token, by the rows' labels, best first; empty for a claim.
    losses: Mapping[str, float] = MappingProxyType({})
    # The source's own, with ">" for better and "≈" for too close to distinguish.
    order: str = ""
    # That order as pairs of neighbours, with the sign between them.
    relations: Sequence[tuple[str, str, str]] = ()
    # The numbers that a layer caches per token, by the rows' labels.
    cached: Mapping[str, int] = MappingProxyType({})

    @property
    def signs(self) -> dict[tuple[str, str], str]:
        """The signs of the relations, by their pairs."""
        return {(a, b): sign for a, sign, b in self.relations}


def rows_of(runs: Sequence[Run], keys: Sequence[str]) -> dict[str, Row]:
    """Sort runs into rows by label, in the order of their values.

    Refuses runs that differ in another numeric key than these, the seed and, within a campaign,
    `OWN_RATE`.
    """
    factors = (*keys, "seed", *(OF_ROW if ROW in keys else ()))
    # A campaign can train every row at the learning rate that is best for it
    # (paper/protocol-2.md): the row's overrides set it, and it is no factor of the campaign.
    if all(run.row and OWN_RATE not in run.factors for run in runs):
        factors = (*factors, OWN_RATE)

    def place(run: Run) -> tuple[Any, ...]:
        values = (value_of(run.config, key) for key in keys)
        numbers = [value if isinstance(value, int | float) else math.inf for value in values]
        return numbers, label_of(run, keys), run.config.seed, run.where

    rows: dict[str, Row] = {}
    ordered = sorted(runs, key=place)
    for run in ordered:
        label = label_of(run, keys)
        row = rows.setdefault(label, Row(label, name_of(run, keys), len(rows), []))
        # Sorted by seed, so a seed that is here twice is here in succession.
        if row.runs and row.runs[-1].config.seed == run.config.seed:
            raise ReportError(
                f"{row.runs[-1].folder} and {run.folder} are both {label}-s{run.config.seed}; "
                "keep one of them"
            )
        row.runs.append(run)
        not_comparable = ordered[0], factors, "not comparable"
        one_name = row.runs[0], ("seed",), "two variants under one name"
        for first, but, complaint in (not_comparable, one_name):
            if differing := differing_keys(first.config.numeric, run.config.numeric, but):
                raise ReportError(
                    f"{first.folder} and {run.folder} are {complaint} ({'; '.join(differing)})"
                )

    _check_facts(ordered)
    check_seeds(ordered)
    mixed = mixed_blocks(ordered).keys()
    return {
        label: replace(row, is_mixed=not mixed.isdisjoint(run.config.seed for run in row.runs))
        for label, row in rows.items()
    }


def default_reference(rows: Mapping[str, Row], keys: Sequence[str]) -> str:
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


def row_factors(runs: Sequence[Run]) -> list[str]:
    """Return the factor that distinguishes rows: their names if they have any, else the variant."""
    return [ROW] if any(run.config.row_name for run in runs) else ["pe"]


def check_blocks(runs: Sequence[Run], remedy: str = "rerun one of them") -> None:
    """Refuse runs of one seed whose surroundings paper/protocol.md does not let differ."""
    for seed, (key, values) in mixed_blocks(runs).items():
        folders = [_first_with(runs, seed, key, value).folder for value in values]
        raise ReportError(
            f"seed {seed} of {runs[0].group} has runs with {key} {' and '.join(values)} "
            f"({' and '.join(map(str, folders))}), but a block must have only one: it can change "
            f"losses; {remedy}"
        )


def _first_with(runs: Sequence[Run], seed: int, key: str, value: str) -> Run:
    """Return the first run of a seed that has ended and has a value of a surrounding."""
    for run in runs:
        is_of_block = run.config.seed == seed and run.status != "unfinished"
        if is_of_block and key in run.env and machine.fact_text(run.env[key]) == value:
            return run
    raise AssertionError(f"no run of seed {seed} has {key} {value}")


def mixed_blocks(runs: Sequence[Run]) -> dict[int, tuple[str, list[str]]]:
    """Return the first surrounding that must not differ within a block, and does, by seed.

    Runs that have not ended have no loss to compare.
    """
    mixed = {}
    ended = [run for run in runs if run.status != "unfinished"]
    for seed in sorted({run.config.seed for run in ended}):
        block = [run for run in ended if run.config.seed == seed]
        differing = differing_surroundings(block)
        if all(run.config.launch.device == "cuda" for run in block):
            # A GPU's losses do not depend on the host's threads.
            differing.pop("num_threads", None)
        keys = [key for key in REFUSED_WITHIN_A_BLOCK if key in differing]
        if keys:
            mixed[seed] = keys[0], differing[keys[0]]
    return mixed


def differing_surroundings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the surroundings that differ between runs (device, torch, commit ...), by key."""
    values = {
        key: sorted({machine.fact_text(run.env[key]) for run in runs if key in run.env})
        for key in machine.MARKED
    }
    return {key: differing for key, differing in values.items() if len(differing) > 1}


def value_of(config: RunConfig, factor: str) -> Any:
    """Return a config's row name, its value of a numeric key, or its values of a section."""
    if factor == ROW and config.row_name is None:
        raise ReportError(f"--factors {ROW}: a run has no row_name; set it with row_name=NAME")
    try:
        return config.row_name if factor == ROW else config.numeric_value(factor)
    except (KeyError, TypeError):
        reason = "no such config key that can change a number"
        raise ReportError(f"--factors {factor}: {reason}") from None


def spelled(config: RunConfig, factor: str) -> str:
    """Return a value as one word: a section's preset or label, else as on the command line."""
    value = value_of(config, factor)
    if not isinstance(value, dict):
        return show(value)
    section = getattr(config, factor)
    return str(section.label if isinstance(section, AttentionConfig) else section.name)


def label_of(run: Run, keys: Sequence[str]) -> str:
    """Return a row's unique label: vo_rope, optim.lr=0.003, or several of these."""
    labels = {"pe": run.config.pe.label}
    return " ".join(labels.get(key) or f"{key}={spelled(run.config, key)}" for key in keys)


def name_of(run: Run, keys: Sequence[str]) -> str:
    """Return a row's name for people: VO-RoPE, or the name that a campaign gives."""
    names = {"pe": run.variant_name, ROW: run.config.row_name}
    return " ".join(names.get(key) or f"{key}={spelled(run.config, key)}" for key in keys)


def _check_facts(runs: Iterable[Run]) -> None:
    """Refuse runs that agree in the keys that determine a fact, but differ in the fact."""
    seen: dict[tuple[str, ...], tuple[Any, Run]] = {}
    for (key, complaint, causes), run in itertools.product(_FACTS, runs):
        fact = run.result.get(key)
        # In older runs, the only hash of weights includes learned frequencies.
        if key == "shared_init_sha256" and fact is None and not run.config.pe.trainable:
            fact = run.result.get("init_sha256")
        # A diverged run has read only some of the tokens.
        if fact is None or (key == "order_sha256" and run.status != "finished"):
            continue

        causing = list(causes)
        if key == "params":
            for name in numeric_values(run.config.pe, departing=True):
                causing += _OWN_PARAMETERS.get(f"pe.{name}", ())
        block = (key, *(str(value_of(run.config, cause)) for cause in causing))
        other, first = seen.setdefault(block, (fact, run))
        if fact != other:
            raise ReportError(
                f"{first.folder} and {run.folder} {complaint}, so they cannot be compared "
                f"({key} {other!s:.12} and {fact!s:.12})"
            )


def check_seeds(runs: Iterable[Run]) -> None:
    """Refuse one seed's run under the number of another: each seed draws its own weights."""
    seen: dict[str, tuple[int, Run]] = {}
    for run in runs:
        key, seed = "init_sha256", run.config.seed
        # Runs that began with a finished run's weights share them; their order of tokens differs.
        if run.config.init_weights is not None:
            key, seed = "order_sha256", run.config.order_seed
        if not run.result.get(key):
            continue
        other, first = seen.setdefault(run.result[key], (seed, run))
        if other != seed:
            raise ReportError(
                f"{first.folder} and {run.folder} have seeds {other} and {seed}, but the same "
                f"{key} ({run.result[key]:.12}): one of them is a copy of the other"
            )
