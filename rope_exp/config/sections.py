"""The sections of a run's config: every key, its type, its default, and what must hold within.

A default, once released, never changes: identities cover what departs from it.
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
from rope_exp.system.errors import ConfigError

MIN_VOCAB_SIZE = 257  # the bytes, and one token that ends a text
# Of positions that are times: as POYO's t_min.
PERIOD_S = 1e-4
INIT_STD = 0.02  # of every weight matrix; of those onto the residual stream, times 1/sqrt(2 layers)

# Past that a layer's objects outweigh its weights, so no estimate of memory would see them.
Layers = Annotated[int, Field(ge=1, le=4096)]
# The largest published vocabularies hold a million; the trainer of merges reserves memory for all
# that it is asked.
VocabSize = Annotated[int, Field(ge=MIN_VOCAB_SIZE, le=2**24)]


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a whole commit, which never moves."""
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
    # null: attention meets every earlier key; else the last so many, its own among them.
    window: Count | None = numeric(None)
    # Whether queries and keys are normed, a head at a time, before they turn.
    qk_norm: bool = numeric(False)
    # Whether keys and values see a learned share of the token before.
    token_shift: bool = numeric(False)
    # The MLP's width is set so that the decoder has so many parameters; null: it is as it stands.
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

    @property
    def features_per_head(self) -> int:
        """K, the features of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


@dataclass(frozen=True, config=SECTION)
class DataConfig:
    """The corpus: where its documents come from and how it is split; or what is generated."""

    # null: the kind; of the hub, what the path and the subset say.
    name: Name | None = setting(None)
    kind: Literal[
        "stdlib", "files", "hub", "addition", "copy", "repeats", "retrieval", "spikes"
    ] = numeric("stdlib")
    # files: a file or folder; hub: owner/name.
    path: PathText | None = numeric(None)
    # hub: the dataset's configuration, and the pinned commit.
    subset: str | None = numeric(None)
    revision: str | None = numeric(None)
    text_column: str | None = numeric(None)
    # files: what one document of a text file is.
    sample_by: Literal["document", "paragraph", "line"] | None = numeric(None)
    # null: hold documents out, this share of them.
    validation_split: str | None = numeric(None)
    holdout_fraction: OpenShare = numeric(0.05)
    # How much of a corpus is prepared; null: all.
    max_tokens: Count | None = numeric(None)
    # Of what is prepared; null: ROPE_EXP_CACHE, or ~/.cache/rope_exp.
    cache_dir: PathText | None = setting(None)
    # Of the order of batches, and of the rows that are generated; null: the run's seed.
    seed: Seed | None = numeric(None)
    # Whether positions begin at 0, and attention anew, where a document begins within a row. Both
    # in evaluation too.
    reset_positions: bool = numeric(False)
    document_mask: bool = numeric(False)
    # Positions of a training row begin anywhere from 0 to here, at random by data.seed, step and
    # row; in evaluation always at 0.
    random_start: Natural = numeric(0)
    # addition: the most significant digit of a number stands first, or the least.
    order: Literal["plain", "reversed"] = numeric("plain")
    # spikes: in how many seconds the fastest pair of features turns once; null: 0.0001.
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
        """What is known of generated data; None of text."""
        return TASKS.get(self.kind)

    @property
    def unit(self) -> str:
        """What losses are counted in."""
        return TEXT_UNIT if self.task is None else self.task.unit

    @property
    def period_s(self) -> float:
        """In how many seconds the fastest pair turns once, where positions are times."""
        return self.period or PERIOD_S

    def _refuse_idle_keys(self) -> None:
        """Refuse a key of one kind of generated data elsewhere, and of text in generated data."""
        owners = {task.key: kind for kind, task in TASKS.items() if task.key}
        for key, value in numeric_values(self, departing=True).items():
            owner = owners.get(key)
            if owner is not None and owner != self.kind:
                raise ConfigError(f"data.{key}", value, f"is for data={owner} alone")
            if owner is None and self.task is not None and key not in ("kind", "seed"):
                allowed = f"data={self.kind} is generated, and has no such key"
                raise ConfigError(f"data.{key}", value, allowed)

    def _derived_name(self) -> str:
        """Return what a table calls the corpus, so that it never bears another one's name."""
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
    """How text becomes token ids."""

    name: Name = setting("bpe_2k")
    # task: the tokens of generated data.
    kind: Literal["bpe", "bytes", "pretrained", "task"] = numeric("bpe")
    vocab_size: VocabSize | None = numeric(2048)
    # bpe: how much text its merges are learned from.
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

    @property
    def known_vocab_size(self) -> int | None:
        """The vocabulary's size; None where a pretrained tokenizer or the task knows it."""
        return MIN_VOCAB_SIZE if self.kind == "bytes" else self.vocab_size


@dataclass(frozen=True, config=SECTION)
class TrainConfig(Budget):
    """The budget and the loop. Batch sizes are in sequences, periods in steps."""

    name: Name = setting("nano")
    num_steps: Count = numeric(500)
    global_batch_size: Count = numeric(16)
    # null: a process's whole share at once.
    micro_batch_size: Count | None = numeric(None)
    # Of evaluation always, of training where there are no stages.
    seq_len: Count = numeric(256)
    # One length after another, each [length, steps] of as many tokens a step as
    # global_batch_size x seq_len, or [length, steps, sequences]; null: seq_len alone.
    stages: Stages | None = numeric(None)
    # causal: every next token; mlm: hidden tokens, from both sides; regression: real numbers at
    # some places, from tokens on both sides.
    objective: Literal["causal", "mlm", "regression"] = numeric("causal")
    # In steps: evaluation on eval_sequences held-out rows, a checkpoint, a row of metrics.
    eval_every: Count = setting(50)
    eval_sequences: Count = numeric(128)
    save_every: Count = setting(250)
    keep_checkpoints: Count = setting(2)
    log_every: Count = setting(10)
    # auto: bf16 where the hardware has it, else fp32.
    precision: Literal["auto", "bf16", "fp32"] = numeric("auto")
    # auto: where it pays back within the run.
    compile: bool | Literal["auto"] = numeric("auto")
    # auto: true on a CPU, where it costs nothing.
    deterministic: bool | Literal["auto"] = numeric("auto")
    # What the finished model is asked (evaluation/probes.py); into probes.json.
    probes: Probes = setting(())
    # Dense bf16 peak of a GPU that config/costs.py does not list; 0: record no MFU.
    peak_tflops: NonNegative | None = setting(None)


@dataclass(frozen=True, config=SECTION)
class TrackerConfig:
    """Where curves go beside metrics.jsonl.

    Every key but the first is wandb's, trackio takes project and run_name. Where a key keeps its
    default, wandb's own environment variable counts: WANDB_MODE, WANDB_PROJECT, WANDB_TAGS, ...
    """

    name: Literal["none", "wandb", "trackio"] = setting("none")
    mode: Literal["online", "offline"] = setting("online")
    project: Name = setting("rope_exp")
    entity: Name | None = setting(None)
    # Beside corpus, size and rotated sites.
    tags: tuple[Tag, ...] = setting(())
    notes: str | None = setting(None)
    # null: variant and seed, and between them what else is swept.
    run_name: str | None = setting(None)


@dataclass(frozen=True, config=SECTION)
class LaunchConfig:
    """How runs are placed on the machine."""

    name: Name = setting("local")
    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    # Of one run; all: one a GPU.
    num_processes: Count | Literal["all"] = setting(1)
    # Of each process; auto: its share of the cores.
    num_threads: Count | Literal["auto"] = setting("auto")
    # Runs at a time; auto: as many as the GPUs allow, one on a CPU.
    max_parallel: Count | Literal["auto"] = setting("auto")
    # In this very process, for a debugger.
    inline: bool = setting(False)


@dataclass(frozen=True, config=SECTION)
class PlaceConfig:
    """Where the run's record goes."""

    # null: results/runs/<group>/<pe>/seed<k>.
    dir: PathText | None = setting(None)
    # null: a name for everything but pe and seed.
    group: Name | None = setting(None)
    # Move an old folder aside instead of going on in it.
    fresh: bool = setting(False)
    # The folder of a finished run, whose weights this one begins with; init_weights is their hash.
    init_from: PathText | None = setting(None)
