"""The configuration of one run, checked, and the hashes that identify a run and its group."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property, reduce
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any, Protocol, Self, cast

from rope_exp import sections
from rope_exp.corpus import Batch, TaskSpec
from rope_exp.errors import ConfigError, show
from rope_exp.files import json_sha256, text_sha256
from rope_exp.identity import (
    Refusal,
    affecting_values,
    choice_names,
    choice_of,
    import_choice,
    no_effect_on_result,
    parse,
    refuse,
)

FACTORS = ("pe", "seed")  # the keys in which runs of one group may differ
DEFAULT_OUTPUT = Path("results/runs")
DEFAULT_TABLES = Path("results")  # a folder for each group or campaign
# Other files of `DEFAULT_TABLES`: no group or campaign may have such a name.
RESERVED = ("README.md", "bench", "launcher", "records", "report.html", "runs", "slurm")
CORE_OBJECTIVES = ("causal", "regression")
MAX_POSITION = 2**24  # float32 represents all integers up to this one


@dataclass(frozen=True)
class Architecture:
    """Specification of a decoder: everything that determines its parameters and computation."""

    model: sections.ModelConfig
    pe: sections.PeConfig
    vocab_size: int
    attn: sections.AttentionConfig = sections.SOFTMAX
    # True if no token attends to a later one.
    causal: bool = True
    # Rows of the table of learned positions, if there is one.
    num_positions: int = 0
    # Real numbers predicted at a place; None: a token, by logits over the vocabulary.
    num_outputs: int | None = None


@dataclass(frozen=True)
class RunConfig:
    """The configuration of one run. `from_dict` converts a plain mapping."""

    # Seed of the initial weights, and of the order of batches unless data.seed is set.
    seed: sections.Natural = 0
    # Name of the row in tables, if rows differ in more than the variant; campaigns set it.
    row_name: sections.Name | None = no_effect_on_result(None)
    # SHA-256 of the initial weights, taken from the run that run.init_from names; null: weights
    # are drawn from the seed.
    init_weights: sections.Sha256 | None = None
    pe: sections.PeConfig = sections.PeConfig()
    attn: sections.AttentionConfig = choice_of(sections.SoftmaxConfig())
    model: sections.ModelConfig = sections.ModelConfig()
    data: sections.DataConfig = sections.DataConfig()
    tokenizer: sections.TokenizerConfig = sections.TokenizerConfig()
    optim: sections.OptimConfig = choice_of(sections.OptimConfig())
    schedule: sections.ScheduleConfig = choice_of(sections.ScheduleConfig())
    train: sections.TrainConfig = sections.TrainConfig()
    tracker: sections.TrackerConfig = no_effect_on_result(sections.TrackerConfig())
    launch: sections.LaunchConfig = no_effect_on_result(sections.LaunchConfig())
    run: sections.RunFolderConfig = no_effect_on_result(sections.RunFolderConfig())

    def __post_init__(self) -> None:
        refuse(self, refusals(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Convert a plain mapping; missing keys keep their defaults. Raises ConfigError."""
        return cls(**parse(cls, values))

    def to_dict(self) -> dict[str, Any]:
        """Return the plain mapping that `from_dict` reads, as config.yaml stores it."""
        return json.loads(json.dumps(asdict(self)))

    def replace(self, section: str, **changes: Any) -> "RunConfig":
        """Return a copy with some keys of one section changed, checked like any other."""
        return replace(self, **{section: replace(getattr(self, section), **changes)})

    def architecture(self, vocab_size: int) -> Architecture:
        """Return the specification of the decoder for a tokenizer's vocabulary."""
        return Architecture(
            model=self.model,
            pe=self.pe,
            vocab_size=vocab_size + self.num_extra_ids,
            attn=self.attn,
            causal=self.causal,
            num_positions=self.num_positions,
            num_outputs=self.task.num_outputs if self.task else None,
        )

    @property
    def task(self) -> TaskSpec | None:
        """The specification of generated data; None for text."""
        return task_of(self.data)

    @property
    def unit(self) -> str:
        """The unit of losses."""
        return "nats per token" if self.task is None else self.task.unit

    @property
    def objective_module(self) -> "Objective | None":
        """The file of objective/ that is used; None for causal and regression, which have none."""
        name = self.train.objective
        if name in CORE_OBJECTIVES:
            return None
        return objective_leaf(name)

    @property
    def num_extra_ids(self) -> int:
        """The number of the decoder's ids beyond the tokenizer's: one under mlm, the mask."""
        objective = self.objective_module
        return 0 if objective is None else objective.NUM_EXTRA_IDS

    def num_predicted(self, seq_len: int) -> int:
        """Return P, the number of predicted places of a sequence."""
        if self.objective_module is not None:
            return self.objective_module.num_predicted(seq_len)
        if self.task is not None and self.task.num_answers is not None:
            return self.task.num_answers
        return seq_len

    @property
    def num_warmup_steps(self) -> int:
        return round(self.schedule.warmup_fraction * self.train.num_steps)

    @property
    def num_positions(self) -> int:
        """One more than the last position of training or evaluation, from 0."""
        return self.pe.start + self.data.random_start + self.train.longest

    @property
    def predicts_tokens(self) -> bool:
        return self.train.objective != "regression"

    @property
    def causal(self) -> bool:
        """True if no token attends to a later one."""
        return self.train.objective == "causal"

    @property
    def order_seed(self) -> int:
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def folder(self) -> Path:
        """`run.dir`, or results/runs/<group>/<pe>/seed<k>."""
        if self.run.dir is not None:
            return Path(self.run.dir).expanduser()
        return DEFAULT_OUTPUT / self.group / self.pe.label / f"seed{self.seed}"

    @property
    def group(self) -> str:
        """`run.group`, or a name by size, kind of attention unless softmax, corpus and hash."""
        if self.run.group is not None:
            return self.run.group
        kind = "" if isinstance(self.attn, sections.SoftmaxConfig) else f"{self.attn.kind}-"
        about = f"{self.model.name}-{kind}{self.data.name}"
        # Together they may be longer than the 64 characters of a name; the hash tells groups apart.
        return f"{about[:55]}-{self.group_sha256[:8]}"

    @property
    def name(self) -> str:
        """`<pe>-s<seed>`, for the tracker and progress lines."""
        return f"{self.pe.label}-s{self.seed}"

    @property
    def config_sha256(self) -> str:
        return json_sha256(affecting_values(self, departing=True))

    @property
    def group_sha256(self) -> str:
        departing = affecting_values(self, departing=True)
        return json_sha256({key: departing[key] for key in departing if key not in FACTORS})

    @cached_property
    def affecting_values(self) -> dict[str, Any]:
        """Every value that can change a number of this run; not to be changed."""
        return affecting_values(self)

    def affecting_value(self, key: str) -> Any:
        """Return a value of `affecting_values`, or a section of it, by its dotted key."""
        return reduce(getitem, key.split("."), self.affecting_values)


class Objective(Protocol):
    """A file of objective/: some tokens of each row are hidden and predicted."""

    @property
    def NUM_EXTRA_IDS(self) -> int:
        """The decoder's ids beyond the tokenizer's vocabulary."""

    def num_predicted(self, seq_len: int) -> int:
        """Return the number of predicted places of a sequence."""

    def hidden(self, plain: Batch, key: tuple[int, int], mask_id: int) -> Batch:
        """Hide some tokens of all rows of a step.

        Args:
            plain: the batch of every next token: ids_BT, and hashed_BS, the columns in
                order_sha256.
            key: the data seed and the step, which alone determine the draws.
            mask_id: the first id beyond the tokenizer's vocabulary.
        Returns:
            The batch that the model reads. Its targets are the hidden tokens at `place_BP`.
        """


def objective_leaf(name: str) -> Objective:
    """Return the file of objective/ that train.objective names."""
    return cast("Objective", import_choice("objective", name, "train.objective"))


class ProbeRule(Protocol):
    """A file of probes/, as a config meets it; the trainer asks it (`trainer.Probe`)."""

    def why_not(self, config: RunConfig) -> str:
        """Return why a config cannot have the probe, or nothing."""


def probe_rule(name: str) -> ProbeRule:
    """Return the file of probes/ that train.probes names."""
    # Check now that the file has all members; the trainer uses the rest only after training.
    members = ("why_not", "ask", "ANSWER", "REPORT")
    return cast("ProbeRule", import_choice("probes", name, "train.probes", members=members))


def task_of(data: sections.DataConfig) -> TaskSpec | None:
    """Return the specification of generated data; None for text."""
    if data.kind in sections.TEXT:
        return None
    task_file = import_choice("tasks", data.kind, "data.kind", core=", ".join(sections.TEXT))
    task: TaskSpec = task_file.SPEC
    return task


def check_group(key: str, name: str) -> None:
    """Refuse a name of a group or a campaign whose tables would mix with other files of results/.

    Args:
        key: what gave the name, for the error.
        name: the name of a folder in `DEFAULT_TABLES`.
    Raises:
        ConfigError: the name is one of `RESERVED`.
    """
    if name in RESERVED:
        names = ", ".join(RESERVED)
        reason = f"must be none of {names}: {DEFAULT_TABLES}/ has them for other files"
        raise ConfigError(key, name, reason)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[prefix + key] = value
    return leaves


def differing_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], may_differ: Collection[str] = ()
) -> list[str]:
    """Return the differences between two configs as text, `key: old -> new`, sorted by key.

    Args:
        old: nested values, as `RunConfig.affecting_values`. A missing key counts as null.
        new: the other's.
        may_differ: keys (optim.lr) or whole sections (optim) that are left out.
    """
    flat_old = flat(old)
    flat_new = flat(new)
    differing = []
    for key in sorted(flat_old.keys() | flat_new.keys()):
        section = key.partition(".")[0]
        before = flat_old.get(key)
        after = flat_new.get(key)
        if before != after and key not in may_differ and section not in may_differ:
            differing.append(f"{key}: {show(before)} -> {show(after)}")
    return differing


# The reasons of keys that need something (`needs`) to have an effect.
NEEDS = {
    "attn.keeps_keys": "attn.kind={0.attn.kind} keeps a state, not keys",
    "attn.takes_additions": "attn.kind={0.attn.kind} has none; attn=softmax has",
    "attn.takes_heads": "attn.kind={0.attn.kind} has sizes of its own; leave the default",
    "pe.rotates_vo": "needs v or o in pe.rotate",
    "predicts_tokens": "data={0.data.kind} predicts numbers, not tokens",
}


def refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield a config's mistakes, the first rule first; a rule may rely on those before it."""
    # Raises for an unknown data.kind, before other keys are blamed.
    task_of(config.data)
    # Before the keys that need an objective: it may itself be the mistake.
    yield from _objective_refusals(config)
    yield from _void_keys(config)
    yield from _data_refusals(config)
    yield from _tracker_refusals(config)
    yield from _budget_refusals(config)
    yield from _attention_refusals(config)
    for name in config.train.probes:
        reason = probe_rule(name).why_not(config)
        if reason:
            yield Refusal("train.probes", reason)
    yield from _position_refusals(config)


def _objective_refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield mistakes about the objective, which generated data determine."""
    objective = config.train.objective
    objectives = (*CORE_OBJECTIVES, *choice_names("objective"))
    if objective not in objectives:
        yield Refusal("train.objective", f"must be one of {', '.join(objectives)}")
    if config.task:
        if objective != config.task.objective:
            reason = f"must be {config.task.objective} for data={config.data.kind}"
            yield Refusal("train.objective", reason)
    elif not config.predicts_tokens:
        yield Refusal("train.objective", "is for data=spikes alone")


def _void_keys(config: RunConfig) -> Iterator[Refusal]:
    """Yield keys that depart from their defaults and would have no effect."""
    kind = config.data.kind
    for part in fields(config):
        values = getattr(config, part.name)
        if not is_dataclass(values):
            continue
        for field in fields(values):
            if getattr(values, field.name) == field.default:
                continue
            key = f"{part.name}.{field.name}"
            kinds = field.metadata.get("kinds", (kind,))
            if kind not in kinds:
                yield Refusal(key, f"is for data={' or '.join(kinds)} alone")
            for needed in field.metadata.get("needs", "").split():
                if not _has(config, needed):
                    yield Refusal(key, NEEDS.get(needed, f"needs {needed}").format(config))


def _has(config: RunConfig, needed: str) -> bool:
    """Return whether a config meets one condition of `needs`: NAME (true), or NAME=VALUE."""
    name, _, wanted = needed.partition("=")
    value = attrgetter(name)(config)
    if wanted:
        return bool(value == wanted)
    return bool(value)


def _data_refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield mistakes about the corpus and its tokenizer."""
    data = config.data
    tokenizer = config.tokenizer
    if data.kind in sections.DATASETS:
        for name in ("path", "text_column"):
            if not getattr(data, name):
                yield Refusal(f"data.{name}", f"must be set for data={data.kind}")
    if tokenizer.kind == "bpe" and tokenizer.train_bytes is None:
        yield Refusal("tokenizer.train_bytes", "must be set for tokenizer.kind=bpe")
    for name, kind in (("vocab_size", "bpe"), ("path", "pretrained")):
        is_set = getattr(tokenizer, name) is not None
        if is_set != (tokenizer.kind == kind):
            reason = f"must be set for tokenizer.kind={kind}, and only there"
            yield Refusal(f"tokenizer.{name}", reason)
    if (tokenizer.kind == "task") != bool(config.task):
        reason = "must be task for generated data, such as data=addition, and only there"
        yield Refusal("tokenizer.kind", reason)


def _tracker_refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield an unknown tracker."""
    trackers = ("none", *choice_names("trackers"))
    if config.tracker.name not in trackers:
        yield Refusal("tracker.name", f"must be one of {', '.join(trackers)}")


def _budget_refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield mistakes about stages and steps, and keys whose values do not fit generated data."""
    train = config.train
    tokens = train.tokens_per_step
    for spec in train.stage_specs:
        if spec.num_sequences is None and tokens % spec.seq_len:
            reason = f"sequences of {spec.seq_len} do not divide the {tokens} tokens of a step"
            yield Refusal("train.stages", f"{reason}; add a number of sequences")
    steps = train.staged[-1].steps[-1]
    if steps != train.num_steps:
        yield Refusal("train.num_steps", f"must be the {steps} of train.stages")
    if config.task:
        yield from _task_refusals(config, config.task)


def _task_refusals(config: RunConfig, task: TaskSpec) -> Iterator[Refusal]:
    """Yield keys whose values do not fit generated data."""
    train = config.train
    kind = config.data.kind
    if train.stages:
        yield Refusal("train.stages", f"data={kind} has rows of one length; leave null")
    if train.seq_len < task.least_seq_len:
        yield Refusal("train.seq_len", f"must be at least {task.least_seq_len} for these data")
    if set(train.probes) - {task.probe}:
        yield Refusal("train.probes", f"data={kind} can be asked for {task.probe} alone")


def _attention_refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield mistakes about heads, and those that the kind of attention refuses."""
    model = config.model
    attn = config.attn
    heads = model.num_attention_heads
    if attn.takes_heads and heads % model.num_key_value_heads:
        yield Refusal("model.num_key_value_heads", f"must divide model.num_attention_heads={heads}")
    refused = [site for site in config.pe.rotate if site not in attn.sites()]
    if refused:
        yield Refusal("pe.rotate", f"{' and '.join(refused)} cannot rotate: {attn.why_not}")
    if attn.takes_heads:
        if model.head_dim is None and model.hidden_size % heads:
            reason = f"must divide model.hidden_size={model.hidden_size}, or model.head_dim be set"
            yield Refusal("model.num_attention_heads", reason)
    elif model.num_key_value_heads != heads:
        must_be = f"must equal model.num_attention_heads={heads}"
        reason = f"attn.kind={attn.kind} has no key/value heads of its own"
        yield Refusal("model.num_key_value_heads", f"{must_be}: {reason}")
    yield from attn.refusals(model)
    if not (config.causal or attn.keeps_keys):
        state = f"the state that attn.kind={attn.kind} keeps goes one way alone"
        yield Refusal("train.objective", f"looks both ways, and {state}")


def _position_refusals(config: RunConfig) -> Iterator[Refusal]:
    """Yield mistakes about positions.

    NoPE is held to the same rules, so that every variant is possible at one size.
    """
    pe = config.pe
    model = config.model
    data = config.data
    if pe.source is not None and pe.code_sha256 != text_sha256(pe.source):
        yield Refusal("pe.source", "was changed: pe.code_sha256 is of another text")
    if pe.code and pe.name in sections.OUR_NAMES:
        yield Refusal("pe.name", "is taken; pe.code needs one of its own")
    patterns = {
        "pe.layers": pe.layers,
        "pe.layers_vo": pe.layers_vo,
        "model.window_layers": model.window_layers,
    }
    for key, pattern in patterns.items():
        if 1 not in (pattern or sections.EVERY)[: model.num_hidden_layers]:
            yield Refusal(key, "reaches none of the layers")

    rotary_dim = config.attn.rotary_dim(model)
    if rotary_dim % 2:
        key = "model.num_attention_heads" if model.head_dim is None else "model.head_dim"
        reason = f"leaves heads of {rotary_dim} features; rotation pairs them: it must be even"
        yield Refusal(key, reason)
    for pair, key in (("qk", "pe.fraction"), ("vo", "pe.fraction_vo")):
        if pe.num_features(rotary_dim, pair) < 2:
            yield Refusal(key, f"leaves no pair to rotate in heads of {rotary_dim} features")
    if pe.input == "learned" and not config.predicts_tokens:
        between = f"positions between whole ones, as those of data={data.kind} are"
        yield Refusal("pe.input", f"has no rows for {between}")
    if pe.input == "sinusoidal" and model.hidden_size % 2:
        yield Refusal("model.hidden_size", "must be even for pe.input=sinusoidal")
    if config.num_positions > MAX_POSITION:
        key = "data.random_start" if data.random_start > pe.start else "pe.start"
        yield Refusal(key, f"positions past {MAX_POSITION:,} are not exact in float32")
