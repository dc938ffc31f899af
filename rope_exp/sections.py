"""The sections of a config: every key, its type, its default and the facts about it.

A released default never changes, because identities cover departures from it. A comment above a
key is its meaning in docs/config.md.
"""

import itertools
import math
import os
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from rope_exp.identity import (
    Refusal,
    affects_result,
    choice_names,
    must,
    no_effect_on_result,
    section,
    set_keys,
    suffix,
)
from rope_exp.stages import Stage, StageSpec, merge_specs, number_stages

SITES = ("q", "k", "v", "o")
EVERY = (1,)  # as a pattern of layers
PAIRS = ("qk", "vo")  # of sites that share frequencies
MIN_VOCAB_SIZE = 257  # the bytes, and one token that ends a text
PERIOD_S = 1e-4  # of the fastest pair if positions are times, as POYO's t_min
INIT_STD = 0.02  # of weight matrices; times 1/sqrt(2 layers) for those onto the residual stream
# Kinds of data: those with a path (the files of corpora/), and those of text.
DATASETS = tuple(choice_names("corpora"))
TEXT = ("stdlib", *DATASETS)

Count = Annotated[int, Field(ge=1, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
# A number of features or heads: torch can count products of three of them.
MAX_SIZE = 2**20
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Even = Annotated[int, Field(ge=2, le=MAX_SIZE, multiple_of=2)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[
    str,
    must(
        "must be 1 to 64 letters, digits, spaces or . _ + -, beginning with a letter or digit",
        re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}").fullmatch,
    ),
]
Text = Annotated[str, must("must be text without control characters", str.isprintable)]
PathText = Annotated[
    str,
    must(
        "must be a path; a leading ~ must mean a user's home",
        lambda text: text.isprintable() and os.path.expanduser(text)[:1] not in ("", "~"),
    ),
]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
# Empty before the first step.
OrderSha256 = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
# Safe in float32.
Base = Annotated[float, Field(gt=1, le=1e30)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Sites = Annotated[
    tuple[Literal["q", "k", "v", "o"], ...],
    must("must name each site at most once", lambda sites: len(set(sites)) == len(sites)),
]
# 1 for a layer that has something, 0 for one that has not, repeated over the layers.
Pattern = tuple[Literal[0, 1], ...]
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]{0,63}"
ClassOfFile = Annotated[str, Field(pattern=rf"^{_IDENTIFIER}\.{_IDENTIFIER}$")]
# The trainer of merges reserves memory for the whole requested size.
VocabSize = Annotated[int, Field(ge=MIN_VOCAB_SIZE, le=2**24)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
LengthAndSteps = Annotated[
    tuple[Count, ...],
    must("must list [length, steps] or [length, steps, sequences]", lambda x: len(x) in (2, 3)),
]

SUBSETS = [subset for size in range(5) for subset in itertools.combinations(SITES, size)]
_INPUTS = {"none": "", "sinusoidal": "Sinusoidal", "learned": "Learned"}
_BIASES = {"none": "", "alibi": "ALiBi", "t5": "T5"}


def subset_name(rotate: tuple[str, ...]) -> str:
    """Return the article's name for a subset of the sites, e.g. QK-RoPE; NoPE for none."""
    return "".join(rotate).upper() + "-RoPE" if rotate else "NoPE"


def _variant_name(rotate: tuple[str, ...], input_: str, bias: str) -> str:
    scheme = "+".join(filter(None, (_INPUTS[input_], _BIASES[bias])))
    return scheme or subset_name(rotate)


OUR_NAMES = set(itertools.starmap(_variant_name, itertools.product(SUBSETS, _INPUTS, _BIASES)))


def shortest(pattern: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shortest equivalent of a pattern of layers; None means every layer."""
    pattern = pattern or EVERY
    # The least shift that keeps the pattern, cyclically, is its period.
    shifts = range(1, len(pattern) + 1)
    return next(pattern[:n] for n in shifts if pattern[n:] + pattern[:n] == pattern)


def _null_if(value: Any, meaning: Any) -> Any:
    """Return a key's value, or None if it equals what null means for the key."""
    return None if value == meaning else value


@section
class PeConfig:
    """Position encoding: rotation, and terms added to embeddings (`input`) or scores (`bias`)."""

    # Name in tables and folders.
    name: Name = affects_result("QK-RoPE", assumption="elsewhere")
    # The sites that rotate: queries, keys, values, and outputs, which are rotated back.
    rotate: Sites = affects_result(("q", "k"), assumption="elsewhere")
    # The base of the frequencies: of F pairs of features, pair j turns by base^(-j/F) a token.
    base: Base = 10000.0
    # The share of each head's features that rotates.
    fraction: Fraction = affects_result(1.0, needs="attn.takes_heads")
    # true: theta itself is learned (raw); log: s is learned, with theta = theta0 e^s.
    trainable: bool | Literal["raw", "log"] = affects_result(
        False, needs="pe.rotate", variant_parameters=("pe.rotate", "pe.fraction", "pe.fraction_vo")
    )
    # The position of a sequence's first token.
    start: Natural = 0
    # Precision of angles and products; bf16 is exact only up to position 256.
    precision: Literal["float32", "bf16"] = "float32"
    # The base for v and o; null: as for q and k.
    base_vo: Base | None = affects_result(None, needs="pe.rotates_vo")
    # The fraction for v and o; null: as for q and k.
    fraction_vo: Fraction | None = affects_result(None, needs="pe.rotates_vo attn.takes_heads")
    # The layers that rotate; null: all; [1, 1, 1, 0]: all but every fourth.
    layers: Pattern | None = affects_result(None, needs="pe.rotate")
    # The layers that rotate v and o; null: as for q and k.
    layers_vo: Pattern | None = affects_result(None, needs="pe.rotates_vo")
    # Learning rate of learned frequencies, as a multiple of optim.lr.
    trainable_lr: Positive = affects_result(1.0, needs="pe.trainable", assumption="departing")
    # The unit that has its own learned frequencies; head: a key/value head of a layer.
    trainable_scope: Literal["model", "layer", "head"] = affects_result(
        "model", needs="pe.trainable", variant_parameters=(), assumption="departing"
    )
    # Added to the embeddings: sines and cosines of the position, or a learned row per position.
    input: Literal["none", "sinusoidal", "learned"] = affects_result(
        "none",
        variant_parameters=("pe.start", "train.seq_len", "train.stages"),
        assumption="departing",
    )
    # Amplitude of sines and cosines; null: as large as the initial embeddings.
    input_scale: Positive | None = affects_result(None, needs="pe.input=sinusoidal")
    # Added to the scores: the distance times a slope per head, or a learned value per distance.
    bias: Literal["none", "alibi", "t5"] = affects_result(
        "none",
        needs="attn.keeps_keys predicts_tokens",
        variant_parameters=(),
        assumption="departing",
    )
    # A position encoding of your own: wave.Wave is class Wave of wave.py, in a --config-dir.
    code: ClassOfFile | None = affects_result(None, needs="attn.takes_additions")
    # SHA-256 of that file's text; filled in.
    code_sha256: Sha256 | None = affects_result(None, needs="pe.code", variant_parameters=())
    # The file's text; filled in.
    source: str | None = no_effect_on_result(None, needs="pe.code")

    def __post_init__(self) -> None:
        layers = shortest(self.layers)
        layers_vo = shortest(self.layers_vo or self.layers)
        set_keys(
            self,
            rotate=tuple(site for site in SITES if site in self.rotate),
            trainable=True if self.trainable == "raw" else self.trainable,
            base_vo=_null_if(self.base_vo, self.base),
            fraction_vo=_null_if(self.fraction_vo, self.fraction),
            layers=_null_if(layers, EVERY),
            layers_vo=_null_if(layers_vo, layers),
        )
        # So `pe.rotate=[q,v]` alone renames the variant.
        if self.name in OUR_NAMES:
            set_keys(self, name=_variant_name(self.rotate, self.input, self.bias))

    def base_of(self, pair: str) -> float:
        """Return the base of the frequencies of a pair of sites, qk or vo."""
        return self.base if pair == "qk" or self.base_vo is None else self.base_vo

    def num_features(self, rotary_dim: int, pair: str = "qk") -> int:
        """Return the features that rotate: a share of `rotary_dim`, rounded down to whole pairs."""
        share = self.fraction if pair == "qk" else self.fraction_vo or self.fraction
        # In floats 0.58 of 100 is a little less than 58, and would lose a pair.
        return 2 * int(rotary_dim * share / 2 + 1e-9)

    @property
    def rotates_vo(self) -> bool:
        return "v" in self.rotate or "o" in self.rotate

    @property
    def sinusoid_scale(self) -> float:
        """The amplitude of sines and cosines, whose root mean square is sqrt(1/2)."""
        return self.input_scale or INIT_STD * math.sqrt(2)

    def sites_of(self, layer: int) -> tuple[str, ...]:
        """Return the sites that rotate in a layer, counted from 0."""
        layers = self.layers or EVERY
        patterns = {"qk": layers, "vo": self.layers_vo or layers}
        pairs = [pair for pair, on in patterns.items() if on[layer % len(on)]]
        return tuple(site for site in self.rotate if site in "".join(pairs))

    @property
    def learned(self) -> dict[str, str]:
        """The pairs of sites that learn frequencies, with their parameters' names."""
        # The first pair has the first name, even if it is vo.
        pairs = [pair for pair in PAIRS if self.trainable and set(pair) & set(self.rotate)]
        return dict(zip(pairs, ("inv_freq", "inv_freq_vo"), strict=False))

    def trained_shape(self, num_layers: int, num_heads: int) -> tuple[int, ...]:
        """Return the leading shape of learned frequencies: (), (layers,) or (layers, key heads)."""
        return (num_layers, num_heads)[: ("model", "layer", "head").index(self.trainable_scope)]

    @property
    def label(self) -> str:
        """The variant in paths, tables and run names: vo_rope, or qk_rope-base500000."""
        label = re.sub(r"[^a-z0-9._+]+", "_", self.name.lower())
        if self.name not in OUR_NAMES:
            return label
        if self.rotate and self.name != subset_name(self.rotate):
            label += f"-rotate_{''.join(self.rotate)}"
        return label + suffix(self, "name", "rotate", "input", "bias")


@section
class ModelConfig:
    """The decoder's sizes, under LlamaConfig's names."""

    name: Name = no_effect_on_result("nano")
    # D, the width of the residual stream.
    hidden_size: Size = 128
    # Width of the MLP.
    intermediate_size: Size = 352
    # Number of layers, each with attention and an MLP.
    num_hidden_layers: Annotated[int, Field(ge=1, le=4096)] = 4
    # Number of query heads of a layer.
    num_attention_heads: Size = 2
    # Number of key and value heads; fewer than query heads: grouped-query attention.
    num_key_value_heads: Size = 2
    # Added to the mean square in each RMS norm.
    rms_norm_eps: Positive = 1e-5
    # Use one matrix for the embeddings and for the output.
    tie_word_embeddings: bool = affects_result(False, needs="predicts_tokens")
    # null: hidden_size / num_attention_heads.
    head_dim: Size | None = affects_result(None, needs="attn.takes_heads")
    # Number of latest keys that a query attends to, its own included; null: all earlier keys.
    window: Count | None = affects_result(None, needs="attn.keeps_keys train.objective=causal")
    # Layers that have the window; null: all; [1, 1, 1, 0]: all but every fourth.
    window_layers: Pattern | None = affects_result(None, needs="model.window")
    # Normalize queries and keys per head, before rotation.
    qk_norm: bool = affects_result(False, needs="attn.takes_additions", assumption="departing")
    # Mix a learned share of the previous token into keys and values.
    token_shift: bool = affects_result(
        False, needs="attn.takes_additions train.objective=causal", assumption="departing"
    )
    # Set the MLP's width so that the decoder has this many parameters; null: keep it.
    match_params: Count | None = no_effect_on_result(None)

    def __post_init__(self) -> None:
        # One spelling of one architecture.
        set_keys(self, window_layers=_null_if(shortest(self.window_layers), EVERY))
        if self.hidden_size == self.num_attention_heads * (self.head_dim or 0):
            set_keys(self, head_dim=None)

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer, counted from 0; None: it attends to all earlier keys."""
        pattern = self.window_layers or EVERY
        return self.window if pattern[layer % len(pattern)] else None

    @property
    def features_per_head(self) -> int:
        """K, the features of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


@section
class DataConfig:
    """The corpus, its source and its split; or the kind of generated data."""

    # null: the kind, with order unless plain; for hub, a name derived from path and subset.
    name: Name | None = no_effect_on_result(None)
    # stdlib, or a file of corpora/ or tasks/.
    kind: str = affects_result("stdlib", of_tokens=True)
    # files: a file or folder; hub: owner/name.
    path: PathText | None = affects_result(None, kinds=DATASETS)
    # The config of the dataset's card; for hub, and for files with such a card.
    subset: Text | None = affects_result(None, kinds=DATASETS, of_tokens=True)
    # hub: the commit or branch; null: the default branch. Its commit is recorded.
    revision: Text | None = affects_result(None, kinds=("hub",), of_tokens=True)
    # The column that holds the text.
    text_column: Text | None = affects_result(None, kinds=DATASETS, of_tokens=True)
    # files: the unit of a text file that makes one document.
    sample_by: Literal["document", "paragraph", "line"] | None = affects_result(
        None, kinds=DATASETS, of_tokens=True
    )
    # A split other than train; null, or validation where there is none: hold out documents.
    validation_split: Text | None = affects_result(None, kinds=DATASETS, of_tokens=True)
    # The share of the documents that is held out if there is no validation split.
    holdout_fraction: OpenShare = affects_result(0.05, kinds=TEXT, of_tokens=True)
    # Maximum number of tokens that are prepared of each side, train and validation; null: all.
    max_tokens: Count | None = affects_result(None, kinds=TEXT, of_tokens=True)
    # Folder of prepared data; null: ROPE_EXP_CACHE, or ~/.cache/rope_exp.
    cache_dir: PathText | None = no_effect_on_result(None)
    # Seed of the order of batches and of generated rows; null: the run's seed.
    seed: Natural | None = None
    # Restart positions at 0 at each document within a sequence, in evaluation, too.
    reset_positions: bool = affects_result(False, kinds=TEXT, assumption="elsewhere")
    # Restrict attention to the query's own document, in evaluation, too.
    document_mask: bool = affects_result(
        False, kinds=TEXT, needs="attn.keeps_keys", assumption="elsewhere"
    )
    # Training sequences start at random positions from 0 to this one; in evaluation, at 0.
    random_start: Natural = affects_result(0, kinds=TEXT, assumption="elsewhere")
    # addition: the most significant digit first (plain), or the least (reversed).
    order: Literal["plain", "reversed"] = affects_result(
        "plain", kinds=("addition",), assumption="departing"
    )
    # spikes: seconds in which the fastest pair of features rotates once; null: 0.0001.
    period: Positive | None = affects_result(None, kinds=("spikes",))

    def __post_init__(self) -> None:
        set_keys(self, period=_null_if(self.period, PERIOD_S))
        if self.name is not None:
            return
        # Name the corpus by kind, order, or data set and subset.
        name = self.kind
        if self.order != "plain":
            name = f"{self.kind}-{self.order}"
        elif self.kind == "hub" and self.path:
            dataset = self.path.rpartition("/")[2]
            subset = self.subset or ""
            name = subset if subset.startswith(dataset) else f"{dataset}-{subset}"
            name = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:64]
        set_keys(self, name=name)


@section
class TokenizerConfig:
    """The tokenizer, which converts text to token ids."""

    name: Name = no_effect_on_result("bpe_2k")
    # task: the tokens of generated data.
    kind: Literal["bpe", "bytes", "pretrained", "task"] = "bpe"
    # bpe: number of tokens; null for the other kinds.
    vocab_size: VocabSize | None = 2048
    # bpe: bytes of text from which merges are learned.
    train_bytes: Count | None = 20_000_000
    # pretrained: a folder, or a repository on the hub.
    path: PathText | None = None
    # pretrained: the commit or branch on the hub; null: the default branch. Its commit is recorded.
    revision: Text | None = affects_result(None, needs="tokenizer.path")


@section
class OptimConfig:
    """AdamW; the keys of every optimizer."""

    name: str = "adamw"
    # Learning rate at the peak of the schedule.
    lr: Positive = 3e-3
    # AdamW's decay of the mean of gradients, and of their squares.
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    # Added to the denominator of AdamW's update.
    eps: Positive = 1e-8
    # For matrices only.
    weight_decay: NonNegative = 0.1
    # Maximum norm of all gradients together.
    grad_clip: Positive = 1.0


@section
class ScheduleConfig:
    """Warm-up, then half a cosine down to the last learning rate; the keys of every schedule."""

    name: str = "cosine"
    # Share of train.num_steps over which the learning rate rises to optim.lr.
    warmup_fraction: Share = 0.05
    # Last learning rate, as a share of optim.lr.
    final_fraction: Share = 0.1


@section
class TrainConfig:
    """The budget and the training loop. Batch sizes are in sequences, periods in steps."""

    name: Name = no_effect_on_result("nano")
    # Number of steps; each updates the weights once.
    num_steps: Count = 500
    # Sequences of a step, over all processes.
    global_batch_size: Count = 16
    # Sequences of a micro-batch, if they have length train.seq_len; longer ones are fewer. null: a
    # process's whole share.
    micro_batch_size: Count | None = None
    # Length of evaluation sequences, and of training sequences unless stages are set.
    seq_len: Count = 256
    # Successive lengths, each [length, steps] with global_batch_size x seq_len tokens a step, or
    # [length, steps, sequences]; null: seq_len only.
    stages: tuple[LengthAndSteps, ...] | None = None
    # causal: predict next tokens; mlm: hidden tokens; regression: real numbers at some places.
    objective: str = affects_result("causal", assumption="departing")
    # Steps between evaluations.
    eval_every: Count = no_effect_on_result(50)
    # Held-out sequences of an evaluation.
    eval_sequences: Count = 128
    # Steps between checkpoints.
    save_every: Count = no_effect_on_result(250)
    # The newest checkpoints that are kept.
    keep_checkpoints: Count = no_effect_on_result(2)
    # Steps between rows of metrics.jsonl.
    log_every: Count = no_effect_on_result(10)
    # auto: bf16 if the hardware supports it, else fp32.
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    # auto: true if it pays back within the run.
    compile: bool | Literal["auto"] = "auto"
    # auto: true on a CPU, where it costs nothing.
    deterministic: bool | Literal["auto"] = "auto"
    # Probes of the finished model (probes/), written to probes.json.
    probes: tuple[str, ...] = no_effect_on_result(())
    # Dense bf16 peak of a GPU missing from peaks.yaml; 0: record no MFU.
    peak_tflops: NonNegative | None = no_effect_on_result(None)

    def __post_init__(self) -> None:
        """Spell stages in one way; null, if they say what num_steps and seq_len say."""
        specs = merge_specs(self.stages or (), self.tokens_per_step)
        stages = None
        if specs and specs != [StageSpec(self.seq_len, self.num_steps)]:
            stages = tuple(spec.to_list() for spec in specs)
        set_keys(self, stages=stages)

    @property
    def tokens_per_step(self) -> int:
        """The tokens of every step unless a stage sets its own sequences."""
        return self.global_batch_size * self.seq_len

    @property
    def stage_specs(self) -> list[StageSpec]:
        """The entries of `stages`; a single one if it is null."""
        entries = self.stages or [(self.seq_len, self.num_steps)]
        return [StageSpec(*entry) for entry in entries]

    @property
    def staged(self) -> tuple[Stage, ...]:
        """The stages in order; a single one if `stages` is null."""
        return number_stages(self.stage_specs, self.tokens_per_step)

    def stage_at(self, step: int) -> Stage:
        """Return the stage of a step, counted from 1; past the end, the last."""
        *stages, last = self.staged
        return next((stage for stage in stages if step <= stage.steps[-1]), last)

    @property
    def longest(self) -> int:
        """The length of the longest sequences in training or evaluation."""
        return max(self.seq_len, *(stage.seq_len for stage in self.staged))

    def tokens_until(self, step: int) -> int:
        """Return the number of tokens up to and including a step."""
        num_tokens = 0
        for stage in self.staged:
            num_steps = min(max(step - stage.steps[0] + 1, 0), len(stage.steps))
            num_tokens += num_steps * stage.tokens_per_step
        return num_tokens

    @property
    def num_tokens(self) -> int:
        return self.tokens_until(self.num_steps)

    def rows_at_once(self, share: int, seq_len: int) -> int:
        """Return the rows of a micro-batch, whose tokens micro_batch_size limits.

        `share` is the process's rows of a step, and `seq_len` their length.
        """
        if self.micro_batch_size is None:
            return share
        most_rows = max(1, self.micro_batch_size * self.seq_len // seq_len)
        # Parts of nearly equal size.
        num_parts = -(-share // most_rows)
        return -(-share // num_parts)


@section
class TrackerConfig:
    """The tracker of curves; where a key has its default, WANDB_MODE and the like apply."""

    # none, wandb, trackio, or another file of trackers/.
    name: Name = "none"
    # offline: wandb keeps the curves in the run folder, to be uploaded by wandb sync.
    mode: Literal["online", "offline"] = "online"
    # Project to which the tracker adds the run.
    project: Name = "rope_exp"


@section
class LaunchConfig:
    """Placement of runs on the machine."""

    name: Name = "local"
    # auto: a GPU if there is one, else the CPU.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # Processes of one run; all: one per GPU.
    num_processes: Count | Literal["all"] = 1
    # Threads of each process; auto: its share of the cores.
    num_threads: Count | Literal["auto"] = "auto"
    # Concurrent runs. auto: on GPUs, as many as they allow; on a CPU, the cores divided by
    # num_threads and num_processes, or one if num_threads is auto.
    max_parallel: Count | Literal["auto"] = "auto"
    # Runs that share a GPU.
    runs_per_gpu: Count = 1
    # Start runs on a CPU though by estimate they need more memory than this machine has.
    exceed_memory: bool = False
    # Runs of one job of a cluster, for `rope-exp campaign` and `rope-exp sweep` on a cluster.
    cells_per_job: Count = 1


@section
class RunFolderConfig:
    """The run's folder, its group, and the run from which it starts."""

    # null: results/runs/<group>/<pe>/seed<k>.
    dir: PathText | None = None
    # null: a name derived from everything but pe and seed.
    group: Name | None = None
    # Folder of a finished run that provides the initial weights; init_weights is their hash.
    init_from: PathText | None = None
    # Execute the code (pe.code) of the run of run.init_from, also if it is not below results/runs.
    trust_code: bool = False


@section
class AttentionConfig:
    """Base class of attention kinds: dataclasses of config keys, starting with the kind's name."""

    kind: str = ""

    # Facts of the class, not keys: they have no annotation.
    # True if it keeps keys, which a window can forget; a state cannot forget.
    keeps_keys = True
    # True if it uses model.num_key_value_heads, model.head_dim and pe.fraction.
    takes_heads = True
    # True if it supports model.qk_norm, model.token_shift and pe.code.
    takes_additions = False
    # Why other sites than `sites` cannot rotate.
    why_not = ""

    @property
    def label(self) -> str:
        """The kind's name in tables: latent, or latent-kv_rank128 if a key departs."""
        return self.kind + suffix(self, "kind")

    def small(self) -> Self:
        """Return this kind with two query heads over one key/value head, which laws.py measures."""
        return self

    def sites(self) -> tuple[str, ...]:
        """Return the sites that can rotate."""
        return SITES

    def rotary_dim(self, model: ModelConfig) -> int:
        """Return the number of features of a head, the last ones, that a rotation can act on."""
        return model.features_per_head

    def key_heads(self, model: ModelConfig) -> int:
        return model.num_key_value_heads

    def widths(self, model: ModelConfig) -> tuple[int, int]:
        """Return the features of a head's keys, and of its values and output."""
        return model.features_per_head, model.features_per_head

    def head_states(self, model: ModelConfig) -> int:
        """Return how many numbers the states of all query heads hold, as in training."""
        return 0

    def refusals(self, model: ModelConfig) -> Iterator[Refusal]:
        """Yield the mistakes that this kind alone refuses, as `config.refusals` does."""
        yield from ()


@section
class SoftmaxConfig(AttentionConfig):
    """Softmax attention with grouped queries."""

    kind: Literal["softmax"] = "softmax"
    # Add one learned score per head to each softmax; its value is 0.
    sink: bool = False

    takes_additions = True


SOFTMAX = SoftmaxConfig()
