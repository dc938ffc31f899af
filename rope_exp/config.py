"""The configuration of one run, converted once from a plain mapping and checked.

Config keys equal dataclass paths: `optim.lr` is `RunConfig.optim.lr`. Two hashes of the numeric
values that depart from their defaults identify runs: `config_sha256` a single run, `group_sha256`
the runs that may share a table.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, reduce
from operator import attrgetter, getitem
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Self

from rope_exp.errors import ConfigError, show
from rope_exp.files import json_sha256, text_sha256
from rope_exp.identity import (
    Count,
    Name,
    Natural,
    NonNegative,
    PathText,
    Rule,
    Sha256,
    choices,
    chosen,
    class_of,
    convert,
    file_of,
    known_keys,
    numeric,
    numeric_values,
    one_of,
    refuse,
    rule,
    section,
    setting,
    settle,
    unknown_key,
)
from rope_exp.sections import (
    EVERY,
    MIN_VOCAB_SIZE,
    OUR_NAMES,
    AdamWConfig,
    Architecture,
    CosineConfig,
    DataConfig,
    Kind,
    ModelConfig,
    OptimConfig,
    PeConfig,
    ScheduleConfig,
    SoftmaxConfig,
    TokenizerConfig,
)

FACTORS = ("pe", "seed")  # the keys in which runs of one group may differ
DEFAULT_OUTPUT = Path("results/runs")

PROBES = choices("probes")
Probes = Annotated[
    tuple[str, ...],
    rule(
        f"must be a list of some of {', '.join(PROBES)}, each at most once",
        lambda probes: set(probes) <= set(PROBES) and len(set(probes)) == len(probes),
    ),
]
Stages = Annotated[
    tuple[tuple[Count, ...], ...],
    rule(
        "must be a list of stages, each [length, steps] or [length, steps, sequences], in whole "
        "numbers of at least 1",
        lambda stages: stages and all(len(stage) in (2, 3) for stage in stages),
    ),
]


@dataclass(frozen=True)
class Stage:
    """Steps on sequences of one length.

    Attributes:
        seq_len: T.
        num_steps: of this stage.
        batch_size: B, the sequences of a step, over all processes.
        steps_before, samples_before, tokens_before: of all earlier stages; a sample is one
            sequence of a step.
    """

    seq_len: int
    num_steps: int
    batch_size: int
    steps_before: int = 0
    samples_before: int = 0
    tokens_before: int = 0

    @property
    def last_step(self) -> int:
        """Its last step, counted from 1 over the whole run."""
        return self.steps_before + self.num_steps

    @property
    def tokens_per_step(self) -> int:
        """The tokens of one step."""
        return self.batch_size * self.seq_len

    @property
    def num_tokens(self) -> int:
        """The tokens of all its steps."""
        return self.num_steps * self.tokens_per_step

    def samples(self, step: int) -> range:
        """Return the numbers of the samples of one of the stage's steps, over the whole run."""
        first = self.samples_before + (step - 1 - self.steps_before) * self.batch_size
        return range(first, first + self.batch_size)

    def tokens_until(self, step: int) -> int:
        """Return the tokens of the run up to and including one of the stage's steps."""
        return self.tokens_before + (step - self.steps_before) * self.tokens_per_step


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
    stages: Stages | None = None
    # causal: predict every next token; mlm: hidden tokens, from both sides; regression: real
    # numbers at some places, from tokens on both sides.
    objective: Annotated[str, file_of("objective", "causal", "regression")] = numeric(
        "causal", assumption="departing"
    )
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
    probes: Probes = setting(())
    # Dense bf16 peak of a GPU missing from costs.py; 0: record no MFU.
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
        """global_batch_size x seq_len, the tokens of every step unless a stage sets its own."""
        return self.global_batch_size * self.seq_len

    @property
    def staged(self) -> tuple[Stage, ...]:
        """The stages in order; a single one if `stages` is null."""
        stages = [Stage(0, 0, 0)]
        for seq_len, num_steps, *rows in self.stages or [(self.seq_len, self.num_steps)]:
            before = stages[-1]
            batch_size = rows[0] if rows else self.tokens_per_step // seq_len
            samples = before.samples_before + before.num_steps * before.batch_size
            tokens = before.tokens_before + before.num_tokens
            stages.append(Stage(seq_len, num_steps, batch_size, before.last_step, samples, tokens))
        return tuple(stages[1:])

    def stage_at(self, step: int) -> Stage:
        """Return the stage of a step, counted from 1; past the end, the last."""
        *stages, last = self.staged
        return next((stage for stage in stages if step <= stage.last_step), last)

    @property
    def longest(self) -> int:
        """The length of the longest sequences in training or evaluation."""
        return max(self.seq_len, *(stage.seq_len for stage in self.staged))

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens up to and including a step; 0 at step 0."""
        return self.stage_at(step).tokens_until(step)

    @property
    def num_tokens(self) -> int:
        """The tokens of the whole run."""
        return self.tokens_until(self.num_steps)

    def rows_at_once(self, share: int, seq_len: int) -> int:
        """Return the sequences per micro-batch for a process's `share` of sequences of one length.

        The share is split into the fewest micro-batches with no more tokens than micro_batch_size
        sequences of train.seq_len; the last may be smaller.
        """
        if self.micro_batch_size is None:
            return share
        most = max(1, self.micro_batch_size * self.seq_len // seq_len)
        num_parts = -(-share // most)
        return -(-share // num_parts)


@section
class TrackerConfig:
    """The tracker that receives curves, in addition to metrics.jsonl.

    Where a key has its default, wandb's own environment variables apply: WANDB_MODE, WANDB_NAME,
    WANDB_TAGS, ...
    """

    name: Literal["none", "wandb", "trackio"] = "none"
    mode: Literal["online", "offline"] = "online"
    project: Name = "rope_exp"


@section
class LaunchConfig:
    """Placement of runs on the machine."""

    name: Name = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Processes of one run; all: one per GPU.
    num_processes: Count | Literal["all"] = 1
    # Threads of each process; auto: its share of the cores.
    num_threads: Count | Literal["auto"] = "auto"
    # Concurrent runs; auto: as many as the GPUs allow, one on a CPU.
    max_parallel: Count | Literal["auto"] = "auto"
    # Run in the current process, for a debugger.
    inline: bool = False
    # Runs that share a GPU.
    runs_per_gpu: Count = 1
    # Runs of one job, for `rope-exp campaign` and `rope-exp sweep` on a cluster.
    cells_per_job: Count = 1


@section
class PlaceConfig:
    """The run's folder, its group, and the run from which it starts."""

    # null: results/runs/<group>/<pe>/seed<k>.
    dir: PathText | None = None
    # null: a name derived from everything but pe and seed.
    group: Name | None = None
    # Move an old folder aside instead of resuming in it.
    fresh: bool = False
    # Folder of a finished run that provides the initial weights; init_weights is their hash.
    init_from: PathText | None = None


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
    optim: OptimConfig = one_of(AdamWConfig())
    schedule: ScheduleConfig = one_of(CosineConfig())
    train: TrainConfig = TrainConfig()
    tracker: TrackerConfig = setting(TrackerConfig())
    launch: LaunchConfig = setting(LaunchConfig())
    run: PlaceConfig = setting(PlaceConfig())

    def __post_init__(self) -> None:
        refuse(self, rules(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Convert a plain mapping; missing keys keep their defaults. Raises ConfigError."""
        if not isinstance(values, Mapping):
            raise ConfigError("its content", ..., "must be a group of keys")
        known = {field.name: field for field in fields(cls)}
        if unknown := [key for key in values if key not in known]:
            raise unknown_key(unknown[0], known_keys(cls))
        converted = {}
        for key, field in known.items():
            if key in values:
                converted[key] = convert(class_of(field, values[key]), values[key], key)
        return cls(**converted)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain mapping that `from_dict` reads, as config.yaml stores it."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    def replace(self, section: str, **changes: Any) -> "RunConfig":
        """Return a copy with some keys of one section changed, checked like any other."""
        changed = dataclasses.replace(getattr(self, section), **changes)
        return dataclasses.replace(self, **{section: changed})

    def architecture(self, vocab_size: int) -> Architecture:
        """Return the specification of the decoder for a vocabulary.

        Args:
            vocab_size: the tokenizer's; the decoder's has `num_own_ids` more.
        """
        return Architecture(
            self.model,
            self.pe,
            vocab_size + self.num_own_ids,
            self.attn,
            causal=self.causal,
            num_positions=self.num_positions,
            num_outputs=self.data.task.num_outputs if self.data.task else None,
        )

    @property
    def own_objective(self) -> ModuleType | None:
        """The file of the objective; None if it is one of the core's, causal or regression."""
        name = self.train.objective
        is_own = name in ("causal", "regression")
        return None if is_own else chosen("objective", name, "train.objective")

    @property
    def num_own_ids(self) -> int:
        """The number of the decoder's ids beyond the tokenizer's: one under mlm, the mask."""
        return self.own_objective.NUM_OWN_IDS if self.own_objective else 0

    def num_predicted(self, seq_len: int) -> int:
        """Return P, the number of predicted places of a sequence."""
        if self.own_objective:
            places: int = self.own_objective.num_predicted(seq_len)
            return places
        return (self.data.task and self.data.task.num_queries) or seq_len

    @property
    def num_warmup_steps(self) -> int:
        """The number of steps over which the learning rate rises to its peak."""
        return round(self.schedule.warmup_fraction * self.train.num_steps)

    @property
    def num_positions(self) -> int:
        """One more than the last position of training, from 0."""
        return self.pe.start + self.data.random_start + self.train.longest

    @property
    def known_vocab_size(self) -> int | None:
        """The vocabulary's size; None if only a pretrained tokenizer itself knows it."""
        if self.data.task is not None:
            return len(self.data.task.tokens)
        return MIN_VOCAB_SIZE if self.tokenizer.kind == "bytes" else self.tokenizer.vocab_size

    @property
    def predicts_tokens(self) -> bool:
        """False if it predicts real numbers."""
        return self.train.objective != "regression"

    @property
    def causal(self) -> bool:
        """True if no token attends to a later one."""
        return self.train.objective == "causal"

    # -- names and places ----------------------------------------------------------------------

    @property
    def order_seed(self) -> int:
        """The seed of the order of batches."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def folder(self) -> Path:
        """`run.dir`, or results/runs/<group>/<pe>/seed<k>."""
        if self.run.dir is not None:
            return Path(self.run.dir).expanduser()
        return DEFAULT_OUTPUT / self.group / self.pe.label / f"seed{self.seed}"

    @property
    def group(self) -> str:
        """`run.group`, or a name for all but pe and seed.

        It has the size, the kind of attention unless softmax, the corpus and a prefix of the hash.
        """
        kind = "" if isinstance(self.attn, SoftmaxConfig) else f"{self.attn.kind}-"
        name = f"{self.model.name}-{kind}{self.data.name}-{self.group_sha256[:8]}"
        return self.run.group or name

    @property
    def name(self) -> str:
        """`<pe>-s<seed>`, for the tracker and progress lines."""
        return f"{self.pe.label}-s{self.seed}"

    # -- identity ------------------------------------------------------------------------------

    @property
    def config_sha256(self) -> str:
        """Hash of all numeric values of this run that depart from their defaults."""
        return json_sha256(numeric_values(self, departing=True))

    @property
    def group_sha256(self) -> str:
        """The same hash without pe and seed: equal in all rows that may be compared."""
        departing = numeric_values(self, departing=True)
        return json_sha256({key: departing[key] for key in departing if key not in FACTORS})

    @cached_property
    def numeric(self) -> dict[str, Any]:
        """Every value that can change a number of this run; not to be changed."""
        return numeric_values(self)

    def numeric_value(self, key: str) -> Any:
        """Return a value of `numeric` by its dotted key, or the values of a section.

        Raises:
            KeyError: no such key can change a number.
        """
        try:
            return reduce(getitem, key.split("."), self.numeric)
        except TypeError:
            raise KeyError(key) from None


def differing_keys(
    old: Mapping[str, Any], new: Mapping[str, Any], but: Collection[str] = (), prefix: str = ""
) -> list[str]:
    """Return `key: old -> new` for each key, at any depth, whose values differ.

    Args:
        but: keys, or sections of keys, that may differ.
    """
    found = []
    for name in sorted(old.keys() | new.keys()):
        before = old.get(name)
        after = new.get(name)
        key = prefix + name
        if key in but or before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differing_keys(before, after, but, f"{key}.")
        else:
            found.append(f"{key}: {show(before)} -> {show(after)}")
    return found


MAX_POSITION = 2**24  # float32 represents all integers up to this one


# The reasons of keys that need something (`needs`) to have an effect.
NEEDS = {
    "attn.keeps_keys": "attn.kind={0.attn.kind} keeps a state, not keys",
    "attn.takes_additions": "attn.kind={0.attn.kind} has none; attn=softmax has",
    "attn.takes_heads": "attn.kind={0.attn.kind} has sizes of its own; leave the default",
    "causal": "needs train.objective=causal; {0.train.objective} looks both ways",
    "pe.is_sinusoidal": "needs pe.input=sinusoidal",
    "pe.rotate": "needs at least one site in pe.rotate",
    "pe.rotates_vo": "needs v or o in pe.rotate",
    "predicts_tokens": "data={0.data.kind} predicts numbers, not tokens",
    "tokenizer.path": "is for tokenizer=pretrained alone",
}


def rules(config: "RunConfig") -> Iterator[Rule]:
    """Yield every rule of a config. A rule may rely on those before it."""
    pe, model, attn = config.pe, config.model, config.attn
    data, task, tokenizer, train = config.data, config.data.task, config.tokenizer, config.train
    heads = model.num_attention_heads

    # Keys that would have no effect, which suggests a mistake.
    for part in fields(config):
        values = getattr(config, part.name)
        for field in fields(values) if is_dataclass(values) else ():
            key = f"{part.name}.{field.name}"
            departs = getattr(values, field.name) != field.default
            kinds = field.metadata.get("kinds", (data.kind,))
            yield departs and data.kind not in kinds, key, f"is for data={' or '.join(kinds)} alone"
            for needed in field.metadata.get("needs", ()):
                is_missing = departs and not attrgetter(needed)(config)
                yield is_missing, key, NEEDS.get(needed, f"needs {needed}")

    # The corpus and its tokenizer.
    has_path = data.kind in ("files", "hub")
    reason = "must name the corpus of data=files and data=hub; no other has a path"
    yield has_path != (data.path is not None), "data.path", reason
    reason = "must name the column that holds the text"
    yield has_path and not data.text_column, "data.text_column", reason
    is_trained = tokenizer.kind == "bpe"
    for key in ("tokenizer.vocab_size", "tokenizer.train_bytes"):
        reason = "must be set for a tokenizer that is trained on the corpus"
        yield is_trained and attrgetter(key)(config) is None, key, reason
    reason = "is given by tokenizer={0.tokenizer.name}; leave null"
    yield not is_trained and tokenizer.vocab_size is not None, "tokenizer.vocab_size", reason
    reason = "must be set for tokenizer=pretrained, and only there"
    is_loaded = tokenizer.kind == "pretrained"
    yield is_loaded != (tokenizer.path is not None), "tokenizer.path", reason
    reason = "is of generated data, such as data=addition, which choose it themselves"
    yield tokenizer.kind == "task" and not task, "tokenizer.kind", reason
    reason = "data={0.data.kind} has tokens of its own: leave out tokenizer=..."
    yield tokenizer.kind != "task" and task, "tokenizer.kind", reason

    # The budget.
    for seq_len, num_steps, *rows in train.stages or ():
        batch_size, rest = divmod(train.tokens_per_step, seq_len)
        reason = (
            f"sequences of {seq_len} do not divide the {train.tokens_per_step} tokens of a step "
            "(train.global_batch_size x train.seq_len); or say how many sequences a step has, as "
            f"in [{seq_len},{num_steps},{max(batch_size, 1)}]"
        )
        yield rest and not rows, "train.stages", reason
    num_steps = sum(stage.num_steps for stage in train.staged)
    reason = f"must be the {num_steps} steps of train.stages"
    yield num_steps != train.num_steps, "train.num_steps", reason
    if task:
        reason = "must be {0.data.task.objective} for data={0.data.kind}"
        yield train.objective != task.objective, "train.objective", reason
        yield train.stages, "train.stages", "data={0.data.kind} has rows of one length; leave null"
        reason = "must be at least {0.data.task.least_seq_len} for data={0.data.kind}"
        yield train.seq_len < task.least_seq_len, "train.seq_len", reason
    else:
        yield not config.predicts_tokens, "train.objective", "is for data=spikes alone"

    # Attention.
    reason = "must divide model.num_attention_heads={0.model.num_attention_heads}"
    yield heads % model.num_key_value_heads, "model.num_key_value_heads", reason
    refused = [site for site in pe.rotate if site not in attn.sites()]
    can = f"attn.kind={attn.kind} can rotate {' and '.join(attn.sites()) or 'nothing'}"
    reason = f"{attn.why_not or can}; {' and '.join(refused)} must not stand there"
    yield refused, "pe.rotate", reason
    if attn.takes_heads:
        reason = "must divide model.hidden_size={0.model.hidden_size}, or model.head_dim be set"
        is_odd = model.head_dim is None and model.hidden_size % heads
        yield is_odd, "model.num_attention_heads", reason
    else:
        reason = "attn.kind={0.attn.kind} has no such heads; leave it equal to "
        is_other = model.num_key_value_heads != heads
        yield is_other, "model.num_key_value_heads", f"{reason}model.num_attention_heads"
    yield from attn.rules(model)
    reason = "looks both ways, and the state that attn.kind={0.attn.kind} keeps goes one way alone"
    yield not (config.causal or attn.keeps_keys), "train.objective", reason

    # What a finished model can be asked.
    for name in train.probes:
        reason = "data={0.data.kind} can be asked for {0.data.task.probe} alone"
        yield task and name != task.probe, "train.probes", reason
        probe = chosen("probes", name, "train.probes")
        reason = probe.why_not(config) if hasattr(probe, "why_not") else ""
        yield reason, "train.probes", reason

    # Positions. Every variant must be possible at a size, so NoPE must satisfy these, too.
    changed = pe.source is not None and pe.code_sha256 != text_sha256(pe.source)
    yield changed, "pe.source", "was changed: pe.code_sha256 is of another text"
    taken = pe.code is not None and pe.name in OUR_NAMES
    yield taken, "pe.name", "is taken; with pe.code give a name of its own"
    for key in ("pe.layers", "pe.layers_vo", "model.window_layers"):
        pattern = attrgetter(key)(config) or EVERY
        reason = "reaches none of the {0.model.num_hidden_layers} layers"
        yield 1 not in pattern[: model.num_hidden_layers], key, reason
    rotary_dim = attn.rotary_dim(model)
    key = "model.num_attention_heads" if model.head_dim is None else "model.head_dim"
    reason = f"leaves heads of {rotary_dim} features; rotation pairs them: it must be even"
    yield rotary_dim % 2, key, reason
    for pair, key in (("qk", "pe.fraction"), ("vo", "pe.fraction_vo")):
        reason = f"leaves no pair to rotate in heads of {rotary_dim} features"
        yield pe.num_features(rotary_dim, pair) < 2, key, reason
    reason = "has no rows for positions between whole ones, as those of data={0.data.kind} are"
    yield pe.input == "learned" and not config.predicts_tokens, "pe.input", reason
    reason = "must be even for pe.input=sinusoidal"
    yield pe.is_sinusoidal and model.hidden_size % 2, "model.hidden_size", reason
    key = "data.random_start" if data.random_start > pe.start else "pe.start"
    reason = f"positions past {MAX_POSITION:,} are not exact in float32"
    yield config.num_positions > MAX_POSITION, key, reason
