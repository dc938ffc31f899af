"""The configuration of one run, checked, and the hashes that identify a run and its group."""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, reduce
from operator import attrgetter, getitem
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Self

from rope_exp.errors import show
from rope_exp.files import json_sha256, text_sha256
from rope_exp.identity import (
    Count,
    Name,
    Natural,
    NonNegative,
    Rule,
    Sha256,
    choices,
    chosen,
    class_of,
    convert,
    must,
    numeric,
    numeric_values,
    one_of,
    refuse,
    section,
    setting,
    settle,
    unknown_key,
)
from rope_exp.sections import (
    DATASETS,
    EVERY,
    MIN_VOCAB_SIZE,
    OUR_NAMES,
    Architecture,
    DataConfig,
    Kind,
    LaunchConfig,
    ModelConfig,
    OptimConfig,
    PeConfig,
    PlaceConfig,
    ScheduleConfig,
    SoftmaxConfig,
    TokenizerConfig,
    TrackerConfig,
)

FACTORS = ("pe", "seed")  # the keys in which runs of one group may differ
DEFAULT_OUTPUT = Path("results/runs")
CORE_OBJECTIVES = ("causal", "regression")
MAX_POSITION = 2**24  # float32 represents all integers up to this one
LengthAndSteps = Annotated[
    tuple[Count, ...],
    must("must list [length, steps] or [length, steps, sequences]", lambda x: len(x) in (2, 3)),
]


@dataclass(frozen=True)
class Stage:
    """Steps on sequences of one length; a sample is one sequence of a step."""

    seq_len: int
    num_steps: int
    # B, over all processes.
    batch_size: int
    # All earlier stages'.
    steps_before: int = 0
    samples_before: int = 0

    @property
    def last_step(self) -> int:
        return self.steps_before + self.num_steps

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def num_tokens(self) -> int:
        return self.num_steps * self.tokens_per_step

    def samples(self, step: int) -> range:
        """Return the numbers of the samples of one of the stage's steps, over the whole run."""
        first = self.samples_before + (step - 1 - self.steps_before) * self.batch_size
        return range(first, first + self.batch_size)


@section
class TrainConfig:
    """The budget and the training loop. Batch sizes are in sequences, periods in steps."""

    name: Name = setting("nano")
    num_steps: Count = 500
    global_batch_size: Count = 16
    # Sequences of a micro-batch; null: a process's whole share.
    micro_batch_size: Count | None = None
    # Length of evaluation sequences, and of training sequences unless stages are set.
    seq_len: Count = 256
    # Successive lengths, each [length, steps] with global_batch_size x seq_len tokens a step, or
    # [length, steps, sequences]; null: seq_len only.
    stages: tuple[LengthAndSteps, ...] | None = None
    # causal: predict every next token; mlm: hidden tokens, from both sides; regression: real
    # numbers at some places, from tokens on both sides.
    objective: str = numeric("causal", assumption="departing")
    # Steps between evaluations.
    eval_every: Count = setting(50)
    # Held-out sequences of an evaluation.
    eval_sequences: Count = 128
    # Steps between checkpoints.
    save_every: Count = setting(250)
    # The newest checkpoints that are kept.
    keep_checkpoints: Count = setting(2)
    # Steps between rows of metrics.jsonl.
    log_every: Count = setting(10)
    # auto: bf16 if the hardware supports it, else fp32.
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    # auto: true if it pays back within the run.
    compile: bool | Literal["auto"] = "auto"
    # auto: true on a CPU, where it costs nothing.
    deterministic: bool | Literal["auto"] = "auto"
    # Probes of the finished model (probes/), written to probes.json.
    probes: tuple[str, ...] = setting(())
    # Dense bf16 peak of a GPU missing from peaks.yaml; 0: record no MFU.
    peak_tflops: NonNegative | None = setting(None)

    def __post_init__(self) -> None:
        """Spell stages in one way: equal neighbours merged, and no sequences that tokens imply."""
        listed: list[tuple[int, ...]] = []
        for seq_len, num_steps, *rows in self.stages or ():
            own = [num for num in rows if num * seq_len != self.tokens_per_step]
            if listed and [listed[-1][0], *listed[-1][2:]] == [seq_len, *own]:
                num_steps += listed.pop()[1]
            listed.append((seq_len, num_steps, *own))
        plain = [(self.seq_len, self.num_steps)]
        settle(self, stages=None if listed in ([], plain) else tuple(listed))

    @property
    def tokens_per_step(self) -> int:
        """The tokens of every step unless a stage sets its own sequences."""
        return self.global_batch_size * self.seq_len

    @property
    def staged(self) -> tuple[Stage, ...]:
        """The stages in order; a single one if `stages` is null."""
        stages = []
        steps = samples = 0
        for seq_len, num_steps, *rows in self.stages or [(self.seq_len, self.num_steps)]:
            batch_size = rows[0] if rows else self.tokens_per_step // seq_len
            stages.append(Stage(seq_len, num_steps, batch_size, steps, samples))
            steps += num_steps
            samples += num_steps * batch_size
        return tuple(stages)

    def stage_at(self, step: int) -> Stage:
        """Return the stage of a step, counted from 1; past the end, the last."""
        *stages, last = self.staged
        return next((stage for stage in stages if step <= stage.last_step), last)

    @property
    def longest(self) -> int:
        """The length of the longest sequences in training or evaluation."""
        return max(self.seq_len, *(stage.seq_len for stage in self.staged))

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens up to and including a step."""
        return sum(
            min(max(step - stage.steps_before, 0), stage.num_steps) * stage.tokens_per_step
            for stage in self.staged
        )

    @property
    def num_tokens(self) -> int:
        return self.tokens_until(self.num_steps)

    def rows_at_once(self, share: int, seq_len: int) -> int:
        """Return the rows of a micro-batch, which micro_batch_size limits in tokens."""
        if self.micro_batch_size is None:
            return share
        most = max(1, self.micro_batch_size * self.seq_len // seq_len)
        num_parts = -(-share // most)
        return -(-share // num_parts)


@dataclass(frozen=True)
class RunConfig:
    """The configuration of one run. `from_dict` converts a plain mapping."""

    # Seed of the initial weights, and of the order of batches unless data.seed is set.
    seed: Natural = 0
    # Name of the row in tables, if rows differ in more than the variant; campaigns set it.
    row_name: Name | None = setting(None)
    # SHA-256 of the initial weights, taken from the run that run.init_from names; null: weights
    # are drawn from the seed.
    init_weights: Sha256 | None = None
    pe: PeConfig = PeConfig()
    attn: Kind = one_of(SoftmaxConfig())
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    optim: OptimConfig = one_of(OptimConfig())
    schedule: ScheduleConfig = one_of(ScheduleConfig())
    train: TrainConfig = TrainConfig()
    tracker: TrackerConfig = setting(TrackerConfig())
    launch: LaunchConfig = setting(LaunchConfig())
    run: PlaceConfig = setting(PlaceConfig())

    def __post_init__(self) -> None:
        refuse(self, rules(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Convert a plain mapping; missing keys keep their defaults. Raises ConfigError."""
        known = {field.name: field for field in fields(cls)}
        converted = {}
        for key, value in convert(dict[str, Any], values).items():
            if key not in known:
                raise unknown_key(key, known)
            converted[key] = convert(class_of(known[key], value), value, key)
        return cls(**converted)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain mapping that `from_dict` reads, as config.yaml stores it."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def replace(self, section: str, **changes: Any) -> "RunConfig":
        """Return a copy with some keys of one section changed, checked like any other."""
        return replace(self, **{section: replace(getattr(self, section), **changes)})

    def architecture(self, vocab_size: int) -> Architecture:
        """Return the specification of the decoder for a tokenizer's vocabulary."""
        outputs = self.data.task.num_outputs if self.data.task else None
        size = vocab_size + self.num_own_ids
        places = self.num_positions
        return Architecture(self.model, self.pe, size, self.attn, self.causal, places, outputs)

    @property
    def own_objective(self) -> ModuleType | None:
        """The file of the objective; None if it is one of the core's, causal or regression."""
        name = self.train.objective
        return None if name in CORE_OBJECTIVES else chosen("objective", name, "train.objective")

    @property
    def num_own_ids(self) -> int:
        """The number of the decoder's ids beyond the tokenizer's: one under mlm, the mask."""
        return self.own_objective.NUM_OWN_IDS if self.own_objective else 0

    def num_predicted(self, seq_len: int) -> int:
        """Return P, the number of predicted places of a sequence."""
        if self.own_objective:
            return self.own_objective.num_predicted(seq_len)
        return (self.data.task and self.data.task.num_queries) or seq_len

    @property
    def num_warmup_steps(self) -> int:
        return round(self.schedule.warmup_fraction * self.train.num_steps)

    @property
    def num_positions(self) -> int:
        """One more than the last position of training or evaluation, from 0."""
        return self.pe.start + self.data.random_start + self.train.longest

    @property
    def known_vocab_size(self) -> int | None:
        """The vocabulary's size; None if only a pretrained tokenizer itself knows it."""
        if self.data.task is not None:
            return len(self.data.task.tokens)
        return MIN_VOCAB_SIZE if self.tokenizer.kind == "bytes" else self.tokenizer.vocab_size

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
        kind = "" if isinstance(self.attn, SoftmaxConfig) else f"{self.attn.kind}-"
        name = f"{self.model.name}-{kind}{self.data.name}-{self.group_sha256[:8]}"
        return self.run.group or name

    @property
    def name(self) -> str:
        """`<pe>-s<seed>`, for the tracker and progress lines."""
        return f"{self.pe.label}-s{self.seed}"

    @property
    def config_sha256(self) -> str:
        return json_sha256(numeric_values(self, departing=True))

    @property
    def group_sha256(self) -> str:
        departing = numeric_values(self, departing=True)
        return json_sha256({key: departing[key] for key in departing if key not in FACTORS})

    @cached_property
    def numeric(self) -> dict[str, Any]:
        """Every value that can change a number of this run; not to be changed."""
        return numeric_values(self)

    def numeric_value(self, key: str) -> Any:
        """Return a value of `numeric`, or of a section, by its dotted key; else raise KeyError."""
        try:
            return reduce(getitem, key.split("."), self.numeric)
        except TypeError:
            raise KeyError(key) from None


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        is_section = isinstance(value, Mapping)
        leaves |= flat(value, f"{prefix}{key}.") if is_section else {prefix + key: value}
    return leaves


def differing_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], but: Collection[str] = ()
) -> list[str]:
    """Return `key: old -> new` for each key whose values differ, but for keys or sections `but`."""
    old, new = flat(old), flat(new)
    return [
        f"{key}: {show(old.get(key))} -> {show(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not {key, key.partition(".")[0]}.intersection(but)
    ]


# The reasons of keys that need something (`needs`) to have an effect.
NEEDS = {
    "attn.keeps_keys": "attn.kind={0.attn.kind} keeps a state, not keys",
    "attn.takes_additions": "attn.kind={0.attn.kind} has none; attn=softmax has",
    "attn.takes_heads": "attn.kind={0.attn.kind} has sizes of its own; leave the default",
    "causal": "needs train.objective=causal; {0.train.objective} looks both ways",
    "pe.is_sinusoidal": "needs pe.input=sinusoidal",
    "pe.rotates_vo": "needs v or o in pe.rotate",
    "predicts_tokens": "data={0.data.kind} predicts numbers, not tokens",
}


def rules(config: RunConfig) -> Iterator[Rule]:
    """Yield every rule of a config. A rule may rely on those before it."""
    pe, model, attn = config.pe, config.model, config.attn
    data, task, tokenizer, train = config.data, config.data.task, config.tokenizer, config.train

    for part in fields(config):
        values = getattr(config, part.name)
        for field in fields(values) if is_dataclass(values) else ():
            key = f"{part.name}.{field.name}"
            departs = getattr(values, field.name) != field.default
            kinds = field.metadata.get("kinds", (data.kind,))
            yield departs and data.kind not in kinds, key, f"is for data={' or '.join(kinds)} alone"
            for needed in field.metadata.get("needs", "").split():
                is_missing = departs and not attrgetter(needed)(config)
                yield is_missing, key, NEEDS.get(needed, f"needs {needed}")

    # The corpus and its tokenizer.
    for name in ("path", "text_column") if data.kind in DATASETS else ():
        yield not getattr(data, name), f"data.{name}", "must be set for data={0.data.kind}"
    lacks_bytes = tokenizer.kind == "bpe" and tokenizer.train_bytes is None
    yield lacks_bytes, "tokenizer.train_bytes", "must be set for tokenizer.kind=bpe"
    for name, kind in (("vocab_size", "bpe"), ("path", "pretrained")):
        is_set = getattr(tokenizer, name) is not None
        reason = f"must be set for tokenizer.kind={kind}, and only there"
        yield is_set != (tokenizer.kind == kind), f"tokenizer.{name}", reason
    reason = "must be task for generated data, such as data=addition, and only there"
    yield (tokenizer.kind == "task") != bool(task), "tokenizer.kind", reason

    known = ("none", *choices("trackers"))
    yield config.tracker.name not in known, "tracker.name", f"must be one of {', '.join(known)}"

    # The budget.
    known = (*CORE_OBJECTIVES, *choices("objective"))
    yield train.objective not in known, "train.objective", f"must be one of {', '.join(known)}"
    for seq_len, _, *rows in train.stages or ():
        tokens = train.tokens_per_step
        reason = f"sequences of {seq_len} do not divide the {tokens} tokens of a step; add a number"
        yield not rows and tokens % seq_len, "train.stages", f"{reason} of sequences"
    steps = train.staged[-1].last_step
    yield steps != train.num_steps, "train.num_steps", f"must be the {steps} of train.stages"
    if task:
        yield from task.rules(config)
    else:
        yield not config.predicts_tokens, "train.objective", "is for data=spikes alone"

    # Attention.
    heads = model.num_attention_heads
    reason = f"must divide model.num_attention_heads={heads}"
    yield heads % model.num_key_value_heads, "model.num_key_value_heads", reason
    refused = [site for site in pe.rotate if site not in attn.sites()]
    yield refused, "pe.rotate", f"{' and '.join(refused)} cannot rotate: {attn.why_not}"
    if attn.takes_heads:
        reason = "must divide model.hidden_size={0.model.hidden_size}, or model.head_dim be set"
        is_odd = model.head_dim is None and model.hidden_size % heads
        yield is_odd, "model.num_attention_heads", reason
    else:
        reason = "attn.kind={0.attn.kind} has no such heads; leave model.num_attention_heads"
        yield model.num_key_value_heads != heads, "model.num_key_value_heads", reason
    yield from attn.rules(model)
    reason = "looks both ways, and the state that attn.kind={0.attn.kind} keeps goes one way alone"
    yield not (config.causal or attn.keeps_keys), "train.objective", reason

    # The questions to a finished model.
    for name in train.probes:
        probe = chosen("probes", name, "train.probes")
        reason = probe.why_not(config) if hasattr(probe, "why_not") else ""
        yield reason, "train.probes", reason

    # Positions. Every variant must be possible at a size, so NoPE must satisfy these, too.
    is_other = pe.source is not None and pe.code_sha256 != text_sha256(pe.source)
    yield is_other, "pe.source", "was changed: pe.code_sha256 is of another text"
    yield pe.code and pe.name in OUR_NAMES, "pe.name", "is taken; pe.code needs one of its own"
    for key in ("pe.layers", "pe.layers_vo", "model.window_layers"):
        pattern = attrgetter(key)(config) or EVERY
        yield 1 not in pattern[: model.num_hidden_layers], key, "reaches none of the layers"
    rotary_dim = attn.rotary_dim(model)
    key = "model.num_attention_heads" if model.head_dim is None else "model.head_dim"
    reason = f"leaves heads of {rotary_dim} features; rotation pairs them: it must be even"
    yield rotary_dim % 2, key, reason
    for pair, key in (("qk", "pe.fraction"), ("vo", "pe.fraction_vo")):
        reason = f"leaves no pair to rotate in heads of {rotary_dim} features"
        yield pe.num_features(rotary_dim, pair) < 2, key, reason
    reason = "has no rows for positions between whole ones, as those of data={0.data.kind} are"
    yield pe.input == "learned" and not config.predicts_tokens, "pe.input", reason
    is_odd = pe.is_sinusoidal and model.hidden_size % 2
    yield is_odd, "model.hidden_size", "must be even for pe.input=sinusoidal"
    key = "data.random_start" if data.random_start > pe.start else "pe.start"
    reason = f"positions past {MAX_POSITION:,} are not exact in float32"
    yield config.num_positions > MAX_POSITION, key, reason
