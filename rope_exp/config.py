"""The configuration of one run, checked, and the hashes that identify a run and its group."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cached_property, reduce
from operator import attrgetter, getitem
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from rope_exp import sections
from rope_exp.errors import show
from rope_exp.files import json_sha256, text_sha256
from rope_exp.identity import Rule, choices, chosen, numeric_values, one_of, parse, refuse, setting

FACTORS = ("pe", "seed")  # the keys in which runs of one group may differ
DEFAULT_OUTPUT = Path("results/runs")
CORE_OBJECTIVES = ("causal", "regression")
MAX_POSITION = 2**24  # float32 represents all integers up to this one


@dataclass(frozen=True)
class Architecture:
    """Specification of a decoder: everything that determines its parameters and computation."""

    model: sections.ModelConfig
    pe: sections.PeConfig
    vocab_size: int
    attn: sections.Kind = sections.SOFTMAX
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
    row_name: sections.Name | None = setting(None)
    # SHA-256 of the initial weights, taken from the run that run.init_from names; null: weights
    # are drawn from the seed.
    init_weights: sections.Sha256 | None = None
    pe: sections.PeConfig = sections.PeConfig()
    attn: sections.Kind = one_of(sections.SoftmaxConfig())
    model: sections.ModelConfig = sections.ModelConfig()
    data: sections.DataConfig = sections.DataConfig()
    tokenizer: sections.TokenizerConfig = sections.TokenizerConfig()
    optim: sections.OptimConfig = one_of(sections.OptimConfig())
    schedule: sections.ScheduleConfig = one_of(sections.ScheduleConfig())
    train: sections.TrainConfig = sections.TrainConfig()
    tracker: sections.TrackerConfig = setting(sections.TrackerConfig())
    launch: sections.LaunchConfig = setting(sections.LaunchConfig())
    run: sections.PlaceConfig = setting(sections.PlaceConfig())

    def __post_init__(self) -> None:
        refuse(self, rules(self))

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
        kind = "" if isinstance(self.attn, sections.SoftmaxConfig) else f"{self.attn.kind}-"
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
        """Return a value of `numeric`, or a section of it, by its dotted key."""
        return reduce(getitem, key.split("."), self.numeric)


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
                name, _, wanted = needed.partition("=")
                value = attrgetter(name)(config)
                is_missing = value != wanted if wanted else not value
                reason = NEEDS.get(needed, f"needs {needed}").format(config)
                yield departs and is_missing, key, reason

    # The corpus and its tokenizer.
    for name in ("path", "text_column") if data.kind in sections.DATASETS else ():
        yield not getattr(data, name), f"data.{name}", f"must be set for data={data.kind}"
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
    for seq_len, _, *sequences in train.stages or ():
        tokens = train.tokens_per_step
        reason = f"sequences of {seq_len} do not divide the {tokens} tokens of a step; add a number"
        yield not sequences and tokens % seq_len, "train.stages", f"{reason} of sequences"
    steps = train.staged[-1].steps[-1]
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
        reason = f"must divide model.hidden_size={model.hidden_size}, or model.head_dim be set"
        is_broken = model.head_dim is None and model.hidden_size % heads
        yield is_broken, "model.num_attention_heads", reason
    else:
        reason = f"attn.kind={attn.kind} has no such heads; leave model.num_attention_heads"
        yield model.num_key_value_heads != heads, "model.num_key_value_heads", reason
    yield from attn.rules(model)
    reason = f"looks both ways, and the state that attn.kind={attn.kind} keeps goes one way alone"
    yield not (config.causal or attn.keeps_keys), "train.objective", reason

    # The questions to a finished model.
    for name in train.probes:
        probe = chosen("probes", name, "train.probes")
        reason = probe.why_not(config) if hasattr(probe, "why_not") else ""
        yield reason, "train.probes", reason

    # Positions. Every variant must be possible at a size, so NoPE must satisfy these, too.
    is_other = pe.source is not None and pe.code_sha256 != text_sha256(pe.source)
    yield is_other, "pe.source", "was changed: pe.code_sha256 is of another text"
    is_taken = pe.code and pe.name in sections.OUR_NAMES
    yield is_taken, "pe.name", "is taken; pe.code needs one of its own"
    for key in ("pe.layers", "pe.layers_vo", "model.window_layers"):
        pattern = attrgetter(key)(config) or sections.EVERY
        yield 1 not in pattern[: model.num_hidden_layers], key, "reaches none of the layers"
    rotary_dim = attn.rotary_dim(model)
    key = "model.num_attention_heads" if model.head_dim is None else "model.head_dim"
    reason = f"leaves heads of {rotary_dim} features; rotation pairs them: it must be even"
    yield rotary_dim % 2, key, reason
    for pair, key in (("qk", "pe.fraction"), ("vo", "pe.fraction_vo")):
        reason = f"leaves no pair to rotate in heads of {rotary_dim} features"
        yield pe.num_features(rotary_dim, pair) < 2, key, reason
    reason = f"has no rows for positions between whole ones, as those of data={data.kind} are"
    yield pe.input == "learned" and not config.predicts_tokens, "pe.input", reason
    is_odd = pe.input == "sinusoidal" and model.hidden_size % 2
    yield is_odd, "model.hidden_size", "must be even for pe.input=sinusoidal"
    key = "data.random_start" if data.random_start > pe.start else "pe.start"
    reason = f"positions past {MAX_POSITION:,} are not exact in float32"
    yield config.num_positions > MAX_POSITION, key, reason
