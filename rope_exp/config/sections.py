"""The sections of a run's config: every key, its type, its default, and checks within a section.

A released default never changes, because identities cover departures from it.
"""

import re
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from rope_exp.config.probes import Probes
from rope_exp.config.schema import (
    SECTION,
    Count,
    Name,
    Natural,
    NonNegative,
    OpenShare,
    PathText,
    Positive,
    Seed,
    Size,
    Tag,
    numeric,
    numeric_values,
    setting,
)
from rope_exp.config.stages import Budget, Stages
from rope_exp.config.tasks import TASKS, TEXT_UNIT, TaskFacts
from rope_exp.config.variants import EVERY, Pattern, shortest
from rope_exp.system.errors import ConfigError

MIN_VOCAB_SIZE = 257  # the bytes, and one token that ends a text
# Period of the fastest pair if positions are times, as POYO's t_min.
PERIOD_S = 1e-4
INIT_STD = 0.02  # of weight matrices; times 1/sqrt(2 layers) for those onto the residual stream

# Beyond this, a layer's objects outweigh its weights, and memory estimates would miss them.
Layers = Annotated[int, Field(ge=1, le=4096)]
# The largest published vocabularies hold a million; the trainer of merges reserves memory for the
# whole requested size.
VocabSize = Annotated[int, Field(ge=MIN_VOCAB_SIZE, le=2**24)]


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a full commit hash, which never moves."""
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None


@dataclass(frozen=True, config=SECTION)
class ModelConfig:
    """The decoder's sizes, under LlamaConfig's names."""

    name: Name = setting("nano")
    hidden_size: Size = numeric(128)
    intermediate_size: Size = numeric(352)
    num_hidden_layers: Layers = numeric(4)
    num_attention_heads: Size = numeric(2)
    num_key_value_heads: Size = numeric(2)
    rms_norm_eps: Positive = numeric(1e-5)
    tie_word_embeddings: bool = numeric(False)
    # null: hidden_size / num_attention_heads.
    head_dim: Size | None = numeric(None)
    # Number of latest keys that a query attends to, its own included; null: all earlier keys.
    window: Count | None = numeric(None)
    # Layers that have the window; null: all; [1, 1, 1, 0]: all but every fourth.
    window_layers: Pattern | None = numeric(None)
    # Normalize queries and keys per head, before rotation.
    qk_norm: bool = numeric(False)
    # Mix a learned share of the previous token into keys and values.
    token_shift: bool = numeric(False)
    # Set the MLP's width so that the decoder has this many parameters; null: keep it.
    match_params: Count | None = setting(None)

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        if self.hidden_size == heads * (self.head_dim or 0):
            # One spelling of one architecture.
            object.__setattr__(self, "head_dim", None)
        if heads % self.num_key_value_heads:
            raise ConfigError(
                "model.num_key_value_heads",
                self.num_key_value_heads,
                f"must divide model.num_attention_heads={heads}",
            )
        if self.window_layers is not None:
            pattern = shortest(self.window_layers)
            object.__setattr__(self, "window_layers", None if pattern == EVERY else pattern)
        if self.window_layers is not None and self.window is None:
            raise ConfigError("model.window_layers", list(self.window_layers), "needs model.window")

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer, counted from 0; None: it attends to all earlier keys."""
        pattern = self.window_layers
        return self.window if pattern is None or pattern[layer % len(pattern)] else None

    @property
    def features_per_head(self) -> int:
        """K, the features of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


# Keys of DataConfig without a meaning for a kind of text.
IDLE = {
    "stdlib": ("subset", "revision", "text_column", "sample_by", "validation_split"),
    "files": ("revision",),
}


@dataclass(frozen=True, config=SECTION)
class DataConfig:
    """The corpus, its source and its split; or the kind of generated data."""

    # null: the kind; for hub, a name derived from path and subset.
    name: Name | None = setting(None)
    kind: Literal[
        "stdlib", "files", "hub", "addition", "copy", "repeats", "retrieval", "spikes"
    ] = numeric("stdlib")
    # files: a file or folder; hub: owner/name.
    path: PathText | None = numeric(None)
    # The config of the dataset's card; for hub, and for files with such a card.
    subset: str | None = numeric(None)
    # hub: the commit or branch; null: the default branch. Its commit is recorded.
    revision: str | None = numeric(None)
    # The column that holds the text.
    text_column: str | None = numeric(None)
    # files: the unit of a text file that makes one document.
    sample_by: Literal["document", "paragraph", "line"] | None = numeric(None)
    # null: hold out a share of the documents.
    validation_split: str | None = numeric(None)
    # The share of the documents that is held out if there is no validation split.
    holdout_fraction: OpenShare = numeric(0.05)
    # Maximum number of tokens that are prepared; null: all.
    max_tokens: Count | None = numeric(None)
    # Folder of prepared data; null: ROPE_EXP_CACHE, or ~/.cache/rope_exp.
    cache_dir: PathText | None = setting(None)
    # Seed of the order of batches and of generated rows; null: the run's seed.
    seed: Seed | None = numeric(None)
    # Restart positions at 0 at each document within a sequence, in evaluation, too.
    reset_positions: bool = numeric(False)
    # Restrict attention to the query's own document, in evaluation, too.
    document_mask: bool = numeric(False)
    # Positions of a training sequence start at a random number from 0 to this one, drawn by
    # data.seed, step and sequence; in evaluation they start at 0.
    random_start: Natural = numeric(0)
    # addition: the most significant digit first (plain), or the least (reversed).
    order: Literal["plain", "reversed"] = numeric("plain")
    # spikes: seconds in which the fastest pair of features rotates once; null: 0.0001.
    period: Positive | None = numeric(None)

    def __post_init__(self) -> None:
        if self.name is None:
            object.__setattr__(self, "name", self._derived_name())
        if self.period == PERIOD_S:
            # One spelling of one data set.
            object.__setattr__(self, "period", None)

        has_path = self.kind in ("files", "hub")
        if has_path != (self.path is not None):
            raise ConfigError(
                "data.path",
                self.path,
                "must name the corpus of data=files and data=hub; no other has a path",
            )
        if has_path and not self.text_column:
            raise ConfigError(
                "data.text_column", self.text_column, "must name the column that holds the text"
            )
        self._refuse_idle_keys()

    @property
    def task(self) -> TaskFacts | None:
        """Facts about generated data; None for text."""
        return TASKS.get(self.kind)

    @property
    def unit(self) -> str:
        """The unit of losses."""
        return TEXT_UNIT if self.task is None else self.task.unit

    @property
    def period_s(self) -> float:
        """Seconds in which the fastest pair rotates once, if positions are times."""
        return self.period or PERIOD_S

    def _refuse_idle_keys(self) -> None:
        """Refuse keys of another kind of data."""
        owners = {task.key: kind for kind, task in TASKS.items() if task.key}
        for key, value in numeric_values(self, departing=True).items():
            owner = owners.get(key)
            if owner is not None and owner != self.kind:
                raise ConfigError(f"data.{key}", value, f"is for data={owner} alone")
            if key in IDLE.get(self.kind, ()) and value is not None:
                raise ConfigError(f"data.{key}", value, f"data={self.kind} has no such key")
            if owner is None and self.task is not None and key not in ("kind", "seed"):
                allowed = f"data={self.kind} is generated, and has no such key"
                raise ConfigError(f"data.{key}", value, allowed)

    def _derived_name(self) -> str:
        """Derive the corpus's name in tables, so that it never has another corpus's name."""
        if self.order != "plain":
            return f"{self.kind}-{self.order}"
        if self.kind != "hub" or not self.path:
            return self.kind

        dataset = self.path.rpartition("/")[2]
        subset = self.subset or ""
        name = subset if subset.startswith(dataset) else f"{dataset}-{subset}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:64]


@dataclass(frozen=True, config=SECTION)
class TokenizerConfig:
    """The tokenizer, which converts text to token ids."""

    name: Name = setting("bpe_2k")
    # task: the tokens of generated data.
    kind: Literal["bpe", "bytes", "pretrained", "task"] = numeric("bpe")
    vocab_size: VocabSize | None = numeric(2048)
    # bpe: bytes of text from which merges are learned.
    train_bytes: Count | None = numeric(20_000_000)
    # pretrained: a folder, or a repository on the hub.
    path: PathText | None = numeric(None)
    revision: str | None = numeric(None)

    def __post_init__(self) -> None:
        if self.kind == "bpe":
            for key in ("vocab_size", "train_bytes"):
                if getattr(self, key) is None:
                    raise ConfigError(
                        f"tokenizer.{key}",
                        None,
                        "must be set for a tokenizer that is trained on the corpus",
                    )
        elif self.vocab_size is not None:
            raise ConfigError(
                "tokenizer.vocab_size",
                self.vocab_size,
                f"is given by tokenizer={self.name}; leave null",
            )

        if (self.kind == "pretrained") != (self.path is not None):
            raise ConfigError(
                "tokenizer.path", self.path, "must be set for tokenizer=pretrained, and only there"
            )
        if self.kind != "pretrained" and self.revision is not None:
            allowed = "is for tokenizer=pretrained alone"
            raise ConfigError("tokenizer.revision", self.revision, allowed)

    @property
    def known_vocab_size(self) -> int | None:
        """The vocabulary's size; None if a pretrained tokenizer or the task knows it."""
        return MIN_VOCAB_SIZE if self.kind == "bytes" else self.vocab_size


@dataclass(frozen=True, config=SECTION)
class TrainConfig(Budget):
    """The budget and the training loop. Batch sizes are in sequences, periods in steps."""

    name: Name = setting("nano")
    num_steps: Count = numeric(500)
    global_batch_size: Count = numeric(16)
    # Sequences of a micro-batch; null: a process's whole share.
    micro_batch_size: Count | None = numeric(None)
    # Length of evaluation sequences, and of training sequences unless stages are set.
    seq_len: Count = numeric(256)
    # Successive lengths, each [length, steps] with global_batch_size x seq_len tokens a step, or
    # [length, steps, sequences]; null: seq_len only.
    stages: Stages | None = numeric(None)
    # causal: predict every next token; mlm: hidden tokens, from both sides; regression: real
    # numbers at some places, from tokens on both sides.
    objective: Literal["causal", "mlm", "regression"] = numeric("causal")
    # Steps between evaluations.
    eval_every: Count = setting(50)
    # Held-out sequences of an evaluation.
    eval_sequences: Count = numeric(128)
    # Steps between checkpoints.
    save_every: Count = setting(250)
    # The newest checkpoints that are kept.
    keep_checkpoints: Count = setting(2)
    # Steps between rows of metrics.jsonl.
    log_every: Count = setting(10)
    # auto: bf16 if the hardware supports it, else fp32.
    precision: Literal["auto", "bf16", "fp32"] = numeric("auto")
    # auto: true if it pays back within the run.
    compile: bool | Literal["auto"] = numeric("auto")
    # auto: true on a CPU, where it costs nothing.
    deterministic: bool | Literal["auto"] = numeric("auto")
    # Probes of the finished model (evaluation/probes.py), written to probes.json.
    probes: Probes = setting(())
    # Dense bf16 peak of a GPU missing from plan/costs.py; 0: record no MFU.
    peak_tflops: NonNegative | None = setting(None)


@dataclass(frozen=True, config=SECTION)
class TrackerConfig:
    """The tracker that receives curves, in addition to metrics.jsonl.

    Every key but the first is for wandb; trackio uses project and run_name. For a key with its
    default, wandb's own environment variable applies: WANDB_MODE, WANDB_PROJECT, WANDB_TAGS, ...
    """

    name: Literal["none", "wandb", "trackio"] = setting("none")
    mode: Literal["online", "offline"] = setting("online")
    project: Name = setting("rope_exp")
    entity: Name | None = setting(None)
    # In addition to corpus, size and rotated sites.
    tags: tuple[Tag, ...] = setting(())
    notes: str | None = setting(None)
    # null: variant, other swept values and seed.
    run_name: str | None = setting(None)


@dataclass(frozen=True, config=SECTION)
class LaunchConfig:
    """Placement of runs on the machine."""

    name: Name = setting("local")
    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    # Processes of one run; all: one per GPU.
    num_processes: Count | Literal["all"] = setting(1)
    # Threads of each process; auto: its share of the cores.
    num_threads: Count | Literal["auto"] = setting("auto")
    # Concurrent runs; auto: as many as the GPUs allow, one on a CPU.
    max_parallel: Count | Literal["auto"] = setting("auto")
    # Run in the current process, for a debugger.
    inline: bool = setting(False)
    # Runs that share a GPU.
    runs_per_gpu: Count = setting(1)
    # Runs of one job, for `rope-exp campaign` and `rope-exp sweep` on a cluster.
    cells_per_job: Count = setting(1)


@dataclass(frozen=True, config=SECTION)
class PlaceConfig:
    """The run's folder, its group, and the run from which it starts."""

    # null: results/runs/<group>/<pe>/seed<k>.
    dir: PathText | None = setting(None)
    # null: a name derived from everything but pe and seed.
    group: Name | None = setting(None)
    # Move an old folder aside instead of resuming in it.
    fresh: bool = setting(False)
    # Folder of a finished run that provides the initial weights; init_weights is their hash.
    init_from: PathText | None = setting(None)
