"""A run's configuration as frozen dataclasses, converted once from Hydra's mapping, then checked.

Config key = dataclass field = the same path (`optim.lr` is `RunConfig.optim.lr`). Values live in `configs/`; this file
holds types, ranges and everything that must hold between keys, and no defaults. No torch: the dispatcher imports it.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rope_exp.config.schema import (
    Count,
    Name,
    Natural,
    NonNegative,
    OpenShare,
    PathText,
    Positive,
    Rule,
    Seed,
    Share,
    convert,
)
from rope_exp.system.errors import ConfigError, show
from rope_exp.system.files import json_sha256

SITES = ("q", "k", "v", "o")
AUTO = "auto"
MIN_VOCAB_SIZE = 257  # the bytes, and one token that ends a text
MAX_POSITION = 2**24  # the last whole number below which float32 has them all
DEFAULT_OUTPUT = Path("results/runs")


@dataclass(frozen=True)
class PeConfig:
    """A variant: which sites rotate, and how."""

    name: Name
    rotate: tuple[Literal["q", "k", "v", "o"], ...]
    base: Annotated[
        float, Rule("must be a number above 1 and at most 1e30", lambda x: 1 < x <= 1e30)
    ]  # in float32
    fraction: Annotated[float, Rule("must be a number above 0 and at most 1", lambda x: 0 < x <= 1)]
    trainable: bool
    start: Natural

    def __post_init__(self) -> None:
        if len(set(self.rotate)) < len(self.rotate):
            raise ConfigError(
                "pe.rotate", list(self.rotate), "each of q, k, v, o may stand there once"
            )
        if self.trainable and not self.rotate:
            raise ConfigError("pe.trainable", True, "needs at least one site in pe.rotate")
        ordered = tuple(site for site in SITES if site in self.rotate)
        object.__setattr__(self, "rotate", ordered)
        if (
            self.name in _SUBSET_NAMES
        ):  # the name says the subset, so `pe.rotate=[q,v]` alone renames the variant
            object.__setattr__(self, "name", _subset_name(ordered))

    def num_features(self, head_dim: int) -> int:
        """How many of a head's features rotate: `fraction` of them, rounded down to whole pairs."""
        return 2 * int(head_dim * self.fraction / 2)

    @property
    def label(self) -> str:
        """The variant in paths, tables and run names: vo_rope, or qk_rope-base500000 where a key departs."""
        label = re.sub(r"[^a-z0-9._+]+", "_", self.name.lower())
        if self.name not in _SUBSET_NAMES:
            return label
        departures = {"base": 10000.0, "fraction": 1.0, "trainable": False, "start": 0}
        for key, usual in departures.items():
            value = getattr(self, key)
            if value != usual:
                label += f"-{key}" if value is True else f"-{key}{value:g}"
        return label


def _subset_name(rotate: tuple[str, ...]) -> str:
    return "".join(rotate).upper() + "-RoPE" if rotate else "NoPE"


_SUBSET_NAMES = {
    _subset_name(tuple(site for bit, site in enumerate(SITES) if mask >> bit & 1))
    for mask in range(2 ** len(SITES))
}


@dataclass(frozen=True)
class ModelConfig:
    """The decoder's sizes, under LlamaConfig's names."""

    name: Name
    hidden_size: Count
    intermediate_size: Count
    # Past that a layer's objects outweigh its weights, so no estimate of memory would see them.
    num_hidden_layers: Annotated[
        int, Rule("must be a whole number from 1 to 4096", lambda n: 1 <= n <= 4096)
    ]
    num_attention_heads: Count
    num_key_value_heads: Count
    rms_norm_eps: Positive
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        heads = self.num_attention_heads
        if self.hidden_size % heads:
            raise ConfigError(
                "model.num_attention_heads",
                heads,
                f"must divide model.hidden_size={self.hidden_size}",
            )
        if heads % self.num_key_value_heads:
            raise ConfigError(
                "model.num_key_value_heads",
                self.num_key_value_heads,
                f"must divide model.num_attention_heads={heads}",
            )

    @property
    def head_dim(self) -> int:
        """K, the features of one head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class DataConfig:
    """The corpus: where its documents come from and how it is split."""

    name: Name
    kind: Literal["stdlib", "files", "hub"]
    path: PathText | None  # files: a file or folder; hub: owner/name
    subset: str | None  # hub: the dataset's configuration
    revision: str | None  # hub: the pinned commit
    text_column: str | None
    sample_by: (
        Literal["document", "paragraph", "line"] | None
    )  # files: what one document of a text file is
    validation_split: str | None  # null: hold documents out
    holdout_fraction: OpenShare
    max_tokens: Count | None
    cache_dir: PathText | None
    seed: Seed | None  # of the order of batches; null: the run's seed

    def __post_init__(self) -> None:
        if self.kind != "stdlib" and not self.path:
            raise ConfigError("data.path", self.path, f"must name the corpus of data={self.name}")
        if self.kind == "stdlib" and self.path is not None:
            raise ConfigError(
                "data.path", self.path, "the embedded corpus has no path; use data=files"
            )
        if self.kind != "stdlib" and not self.text_column:
            raise ConfigError(
                "data.text_column", self.text_column, "must name the column that holds the text"
            )


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    name: Name
    kind: Literal["bpe", "bytes", "pretrained"]
    # The largest published vocabularies hold a million; the trainer of merges reserves memory for all that it is asked.
    vocab_size: (
        Annotated[
            int,
            Rule("must be a whole number from 257 to 2^24", lambda n: MIN_VOCAB_SIZE <= n <= 2**24),
        ]
        | None
    )
    train_bytes: Count | None  # bpe: how much text its merges are learned from
    path: PathText | None  # pretrained: a folder, or a repository on the hub
    revision: str | None

    @property
    def known_vocab_size(self) -> int | None:
        """The size of the vocabulary, or None where only a pretrained tokenizer itself knows it."""
        return MIN_VOCAB_SIZE if self.kind == "bytes" else self.vocab_size

    def __post_init__(self) -> None:
        if self.kind == "bpe" and (self.vocab_size is None or self.train_bytes is None):
            key = "vocab_size" if self.vocab_size is None else "train_bytes"
            raise ConfigError(
                f"tokenizer.{key}",
                None,
                "must be set for a tokenizer that is trained on the corpus",
            )
        if self.kind != "bpe" and self.vocab_size is not None:
            raise ConfigError(
                "tokenizer.vocab_size",
                self.vocab_size,
                f"is given by tokenizer={self.name}; leave null",
            )
        if (self.kind == "pretrained") != (self.path is not None):
            raise ConfigError(
                "tokenizer.path", self.path, "must be set for tokenizer=pretrained, and only there"
            )


@dataclass(frozen=True)
class OptimConfig:
    """AdamW."""

    name: Literal["adamw"]
    lr: Positive
    betas: tuple[Share, Share]
    eps: Positive
    weight_decay: NonNegative
    grad_clip: Positive

    def __post_init__(self) -> None:
        if max(self.betas) >= 1:
            raise ConfigError("optim.betas", list(self.betas), "both must be below 1")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate as a function of the step, in shares of train.num_steps and of optim.lr."""

    name: Literal["cosine", "wsd"]
    warmup_fraction: Share
    final_fraction: Share  # the last rate, as a share of the peak
    decay_fraction: Share | None  # wsd: how much of the run the last descent takes

    def __post_init__(self) -> None:
        if (self.name == "wsd") != (self.decay_fraction is not None):
            raise ConfigError(
                "schedule.decay_fraction",
                self.decay_fraction,
                "must be set for schedule=wsd, and only there",
            )
        if self.warmup_fraction + (self.decay_fraction or 0) > 1:
            raise ConfigError(
                "schedule.warmup_fraction", self.warmup_fraction, "warm-up and decay exceed the run"
            )


@dataclass(frozen=True)
class TrainConfig:
    """The budget and the loop. Batch sizes are in sequences."""

    name: Name
    num_steps: Count
    global_batch_size: Count
    micro_batch_size: Count | None  # null: a process's whole share at once
    seq_len: Count
    eval_every: Count
    eval_sequences: Count
    save_every: Count
    keep_checkpoints: Count
    log_every: Count
    precision: Literal["auto", "bf16", "fp32"]
    compile: bool | Literal["auto"]
    deterministic: bool | Literal["auto"]
    peak_tflops: NonNegative | None  # dense bf16 peak of an unknown GPU; 0: record no MFU


@dataclass(frozen=True)
class TrackerConfig:
    """Where curves are mirrored. Keys are read from the environment by the tracker itself, never from here."""

    name: Literal["none", "wandb"]
    mode: Literal["online", "offline"]
    project: Name
    entity: Name | None


@dataclass(frozen=True)
class LaunchConfig:
    """How runs are placed on the machine."""

    name: Name
    device: Literal["auto", "cpu", "cuda"]
    num_processes: Count | Literal["all"]  # of one run; all: one a GPU
    max_parallel: (
        Count | Literal["auto"]
    )  # runs at a time; auto: as many as the GPUs allow, one on CPU
    inline: bool  # in this very process, for a debugger


@dataclass(frozen=True)
class PlaceConfig:
    """Where the run's record goes."""

    dir: PathText | None
    group: Name | None
    fresh: bool  # move an old folder aside instead of going on in it


@dataclass(frozen=True)
class RunConfig:
    """One run. `from_dict` is the only way in."""

    seed: Seed
    pe: PeConfig
    model: ModelConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    train: TrainConfig
    tracker: TrackerConfig
    launch: LaunchConfig
    run: PlaceConfig

    def __post_init__(self) -> None:
        # Held by NoPE too: a size is one that all variants can be compared at.
        if self.model.head_dim % 2:
            raise ConfigError(
                "model.num_attention_heads",
                self.model.num_attention_heads,
                f"leaves heads of {self.model.head_dim} features; rotation pairs them, so the number must be even",
            )
        if self.pe.start + self.train.seq_len > MAX_POSITION:
            raise ConfigError(
                "pe.start",
                self.pe.start,
                f"positions past {MAX_POSITION:,} are not exact in float32",
            )
        if self.pe.num_features(self.model.head_dim) < 2:
            raise ConfigError(
                "pe.fraction",
                self.pe.fraction,
                f"leaves no pair to rotate in heads of {self.model.head_dim} features",
            )

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "RunConfig":
        """Convert a plain mapping.

        Raises:
            ConfigError: an unknown or missing key, a wrong type, a value out of range or an impossible combination.
        """
        config = convert(RunConfig, values, "")
        assert isinstance(config, RunConfig)
        return config

    def to_dict(self) -> dict[str, Any]:
        """The plain mapping that `from_dict` reads, as config.yaml stores it."""
        plain = json.loads(json.dumps(dataclasses.asdict(self)))
        assert isinstance(plain, dict)
        return plain

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
        """`run.group`, or a name for everything but pe and seed: size, corpus and the first digits of the hash."""
        return self.run.group or f"{self.model.name}-{self.data.name}-{self.group_sha256[:8]}"

    @property
    def name(self) -> str:
        """<pe>-s<seed>, in the tracker and in progress lines."""
        return f"{self.pe.label}-s{self.seed}"

    @property
    def config_sha256(self) -> str:
        """Of every key that can change a number of this run."""
        return json_sha256(self.numeric_dict())

    @property
    def group_sha256(self) -> str:
        """Of the same keys without pe and seed: equal in all rows that may be compared."""
        return json_sha256(self.group_dict())

    def group_dict(self) -> dict[str, Any]:
        """`numeric_dict` without pe and seed."""
        return {
            key: value for key, value in self.numeric_dict().items() if key not in ("pe", "seed")
        }

    def numeric_dict(self) -> dict[str, Any]:
        """The config without the keys that cannot change a number: logging, saving, tracker, launch, folders."""
        values = self.to_dict()
        for group in ("run", "tracker", "launch"):
            del values[group]
        for key in (
            "log_every",
            "save_every",
            "keep_checkpoints",
            "eval_every",
            "peak_tflops",
            "name",
        ):
            del values["train"][key]
        del values["data"]["cache_dir"]
        for group in (
            "model",
            "data",
            "tokenizer",
        ):  # a preset's name says where its values came from, no more
            del values[group]["name"]
        return values

    def replace(self, section: str, **changes: Any) -> "RunConfig":
        """A copy with some keys of one section changed, checked like any other."""
        values = self.to_dict()
        values[section].update(changes)
        return RunConfig.from_dict(values)


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`key: old -> new` for each key, at any depth, whose values differ between two plain mappings."""
    before, after = _flatten(old), _flatten(new)
    return [
        f"{key}: {show(before.get(key))} -> {show(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            _flatten(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {prefix + key: value}
        )
    return flat
