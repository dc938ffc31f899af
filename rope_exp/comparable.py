"""Comparable runs: equal in every result-affecting key except some named factors.

A factor is a key that can change a number, or a section of keys: `pe` and `seed` for a table of
variants. The factor `row` is a name given by a campaign or an experiment (row_name); it covers
variant, kind of attention and size at once. A row is the runs that agree in every factor but the
seed; a block is the runs of one seed. Runs that must not be compared raise a `ReportError`.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from rope_exp import machine
from rope_exp.config import RunConfig, differing_keys
from rope_exp.errors import show
from rope_exp.folder import ReportError, Run, Status
from rope_exp.identity import affecting_values, metadata_of
from rope_exp.sections import AttentionConfig, PeConfig, SoftmaxConfig

# The factor for rows by name, and the sections of the config that a name covers.
ROW = "row"
OF_ROW = ("pe", "attn", "model")
ROW_RATE = "optim.lr"  # each row of a campaign may have another value of this key
# As a factor, it gives runs of one seed different orders of tokens: they form no blocks.
ORDER = "data.seed"
SEEDS = ("seed", ORDER)  # runs of a block share these keys
# Environment values of a run (machine.MARKED) that must agree within a block. Other differences
# are marked (paper/protocol.md).
REFUSED_WITHIN_A_BLOCK = ("torch", "num_threads", "world_size")
MIXED = "(mixed)"  # marks rows of blocks that differ in these, if the user allows it

# Config keys and sections, by what they determine. Masking adds an id to the vocabulary.
_TOKEN_ID_KEYS = ("data", "tokenizer", "train.objective")
_INITIAL_WEIGHT_KEYS = ("seed", "init_weights", "model", "attn", *_TOKEN_ID_KEYS)
_BUDGET_KEYS = ("train.num_steps", "train.global_batch_size", "train.seq_len", "train.stages")
# The keys that give a variant parameters of its own, and what else determines their number.
_VARIANT_PARAMETER_KEYS = metadata_of(PeConfig, "variant_parameters", "pe.")


class _Determined(NamedTuple):
    """A field of result.json that must be equal in runs that agree in some keys."""

    key: str
    complaint: str  # about two runs that differ in it
    causes: tuple[str, ...]  # the keys or sections that determine it


_DETERMINED = (
    _Determined("data_sha256", "read different corpora", ("data", "tokenizer")),
    _Determined("shared_init_sha256", "started from different weights", _INITIAL_WEIGHT_KEYS),
    _Determined("order_sha256", "saw different tokens", ("seed", *_BUDGET_KEYS, *_TOKEN_ID_KEYS)),
    _Determined(
        "params",
        "differ in parameters",
        ("model", "attn", *_VARIANT_PARAMETER_KEYS, *_TOKEN_ID_KEYS),
    ),
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
        # Status lists the best first.
        best = min((run.status for run in self.runs), key=get_args(Status).index)
        return "" if best == "finished" else best

    @property
    def mark(self) -> str:
        """A suffix for a verdict: `(1 diverged)` if some seeds did, `(mixed)`; else empty."""
        marks = []
        num_diverged = sum(run.status == "diverged" for run in self.runs)
        if num_diverged and self.losses:
            marks.append(f"({num_diverged} diverged)")
        if self.is_mixed:
            marks.append(MIXED)
        return " ".join(marks)


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
    """Return runs as rows by label, in the order of their values.

    Raises:
        ReportError: runs differ in another result-affecting key than these, the seed and, within a
            campaign, `ROW_RATE`; or two are of one row and one seed; or they were not trained on
            the same tokens from the same weights.
    """
    factors = [*keys, "seed"]
    if ROW in keys:
        factors += OF_ROW
    # A campaign can train every row at the learning rate that is best for it
    # (paper/protocol-2.md): the row's overrides set it, and it is no factor of the campaign.
    if all(run.row and ROW_RATE not in run.factors for run in runs):
        factors.append(ROW_RATE)

    ordered = sorted(runs, key=lambda run: _sort_key(run, keys))
    runs_of: dict[str, list[Run]] = {}
    for run in ordered:
        of_row = runs_of.setdefault(label_of(run, keys), [])
        of_row.append(run)
        _refuse_differing(ordered[0], run, factors, "not comparable")
        _refuse_differing(of_row[0], run, ["seed"], "two variants under one name")

    for label, of_row in runs_of.items():
        for first, second in itertools.pairwise(of_row):
            if first.config.seed == second.config.seed:
                raise ReportError(
                    f"{first.folder} and {second.folder} are both {label}-s{first.config.seed}; "
                    "keep one of them"
                )

    _check_results(ordered)
    check_seeds(ordered)
    mixed = mixed_blocks(ordered).keys()
    rows = {}
    for number, (label, of_row) in enumerate(runs_of.items()):
        is_mixed = any(run.config.seed in mixed for run in of_row)
        rows[label] = Row(label, name_of(of_row[0], keys), number, of_row, is_mixed)
    return rows


def _sort_key(run: Run, keys: Sequence[str]) -> tuple[Any, ...]:
    """Return the key by which runs are sorted: numbers, then the row's label, then the seed."""
    numbers = []
    for key in keys:
        value = value_of(run.config, key)
        numbers.append(value if isinstance(value, int | float) else math.inf)
    return numbers, label_of(run, keys), run.config.seed, run.where


def _refuse_differing(first: Run, second: Run, may_differ: Sequence[str], complaint: str) -> None:
    """Refuse two runs that differ in a result-affecting key, unless the key may differ."""
    first_values = first.config.affecting_values
    second_values = second.config.affecting_values
    differing = differing_keys(first_values, second_values, may_differ)
    if differing:
        raise ReportError(
            f"{first.folder} and {second.folder} are {complaint} ({'; '.join(differing)})"
        )


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

    # Without names, no row is the standard one.
    named = configs if ROW in keys else {}
    for label, config in named.items():
        heads, kv_heads = config.model.num_attention_heads, config.model.num_key_value_heads
        is_softmax = isinstance(config.attn, SoftmaxConfig)
        if is_softmax and heads == kv_heads and config.pe.label == REFERENCE:
            return label
    return next(iter(rows))


def row_factors(runs: Sequence[Run]) -> list[str]:
    """Return the factor that distinguishes rows: their names if they have any, else the variant."""
    return [ROW] if any(run.config.row_name for run in runs) else ["pe"]


def check_blocks(runs: Sequence[Run], remedy: str = "rerun one of them") -> None:
    """Refuse runs of one seed that differ in an environment value of REFUSED_WITHIN_A_BLOCK."""
    for seed, (key, values) in mixed_blocks(runs).items():
        folders = [_first_with(runs, seed, key, value).folder for value in values]
        raise ReportError(
            f"seed {seed} of {runs[0].group} has runs with {key} {' and '.join(values)} "
            f"({' and '.join(map(str, folders))}), but a block must have only one: it can change "
            f"losses; {remedy}"
        )


def _first_with(runs: Sequence[Run], seed: int, key: str, value: str) -> Run:
    """Return the first run of a seed that has ended with this environment value."""
    for run in runs:
        is_of_block = run.config.seed == seed and run.status != "unfinished"
        if is_of_block and key in run.env and machine.environment_text(run.env[key]) == value:
            return run
    raise AssertionError(f"no run of seed {seed} has {key} {value}")


def mixed_blocks(runs: Sequence[Run]) -> dict[int, tuple[str, list[str]]]:
    """Return the first environment key that must agree within a block but does not, by seed.

    Runs that have not ended have no loss to compare.

    Returns:
        For each mixed seed, the key and its values.
    """
    mixed = {}
    ended = [run for run in runs if run.status != "unfinished"]
    for seed in sorted({run.config.seed for run in ended}):
        block = [run for run in ended if run.config.seed == seed]
        differing = differing_environment(block)
        if all(run.config.launch.device == "cuda" for run in block):
            # A GPU's losses do not depend on the host's threads.
            differing.pop("num_threads", None)
        keys = [key for key in REFUSED_WITHIN_A_BLOCK if key in differing]
        if keys:
            mixed[seed] = keys[0], differing[keys[0]]
    return mixed


def differing_environment(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the environment values that differ between runs (device, torch, ...), by key."""
    differing = {}
    for key in machine.MARKED:
        values = {machine.environment_text(run.env[key]) for run in runs if key in run.env}
        if len(values) > 1:
            differing[key] = sorted(values)
    return differing


def value_of(config: RunConfig, factor: str) -> Any:
    """Return a config's row name, the value of a result-affecting key, or a section's values."""
    if factor == ROW and config.row_name is None:
        raise ReportError(f"--factors {ROW}: a run has no row_name; set it with row_name=NAME")
    try:
        return config.row_name if factor == ROW else config.affecting_value(factor)
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


def _check_results(runs: Iterable[Run]) -> None:
    """Refuse runs that agree in the keys that determine a result, but differ in the result."""
    seen: dict[tuple[str, ...], tuple[Any, Run]] = {}
    for field, run in itertools.product(_DETERMINED, runs):
        value = _determined_value(run, field.key)
        if value is None:
            continue
        causes = [*field.causes]
        if field.key == "params":
            for name in affecting_values(run.config.pe, departing=True):
                causes += _VARIANT_PARAMETER_KEYS.get(f"pe.{name}", ())

        # Runs with equal values of the causes must have one value of the field.
        causes_and_values = (field.key, *(str(value_of(run.config, cause)) for cause in causes))
        other, first = seen.setdefault(causes_and_values, (value, run))
        if value != other:
            raise ReportError(
                f"{first.folder} and {run.folder} {field.complaint}, so they cannot be compared "
                f"({field.key} {other!s:.12} and {value!s:.12})"
            )


def _determined_value(run: Run, key: str) -> Any:
    """Return a run's value of a field of result.json; None if it has none to compare."""
    # A diverged run has read only some of the tokens.
    if key == "order_sha256" and run.status != "finished":
        return None
    value = run.result.get(key)
    # In older runs, the only hash of weights includes learned frequencies.
    if key == "shared_init_sha256" and value is None and not run.config.pe.trainable:
        return run.result.get("init_sha256")
    return value


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
