"""One run's configuration, converted once from a plain mapping, then checked.

Config key = dataclass field = the same path: `optim.lr` is `RunConfig.optim.lr`. Two hashes tell
runs apart, over the numeric values that depart from their defaults: `config_sha256` one run,
`group_sha256` the runs that may stand in one table.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rope_exp.config.schema import Seed, convert, departures, numeric, numeric_values
from rope_exp.config.sections import (
    Architecture,
    CosineConfig,
    DataConfig,
    LaunchConfig,
    ModelConfig,
    OptimConfig,
    PlaceConfig,
    ScheduleConfig,
    TokenizerConfig,
    TrackerConfig,
    TrainConfig,
)
from rope_exp.config.variants import PeConfig
from rope_exp.system.errors import ConfigError, show
from rope_exp.system.files import json_sha256

MAX_POSITION = 2**24  # the last whole number below which float32 has them all
DEFAULT_OUTPUT = Path("results/runs")


@dataclass(frozen=True)
class RunConfig:
    """One run. `from_dict` makes it from what a command line or a file says."""

    seed: Seed = numeric(0)
    pe: PeConfig = field(default_factory=PeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=CosineConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    run: PlaceConfig = field(default_factory=PlaceConfig)

    def __post_init__(self) -> None:
        head_dim = self.model.head_dim

        # Held by NoPE too: a size is one that all variants can be compared at.
        if head_dim % 2:
            heads = self.model.num_attention_heads
            allowed = f"leaves heads of {head_dim} features; rotation pairs them: it must be even"
            raise ConfigError("model.num_attention_heads", heads, allowed)

        if self.pe.start + self.train.seq_len > MAX_POSITION:
            allowed = f"positions past {MAX_POSITION:,} are not exact in float32"
            raise ConfigError("pe.start", self.pe.start, allowed)

        if self.pe.num_features(head_dim) < 2:
            allowed = f"leaves no pair to rotate in heads of {head_dim} features"
            raise ConfigError("pe.fraction", self.pe.fraction, allowed)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "RunConfig":
        """Convert a plain mapping; a key that it leaves out has its default.

        Raises:
            ConfigError: an unknown key, a wrong type, a value out of range or a combination that
                cannot be.
        """
        config: RunConfig = convert(RunConfig, values, "")
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the plain mapping that `from_dict` reads, as config.yaml stores it."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    def replace(self, section: str, **changes: Any) -> "RunConfig":
        """Return a copy with some keys of one section changed, checked like any other."""
        values = self.to_dict()
        values[section].update(changes)
        return RunConfig.from_dict(values)

    def architecture(self, vocab_size: int) -> Architecture:
        """Return what the decoder is built from, once the vocabulary is known."""
        return Architecture(self.model, self.pe, vocab_size)

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
        """`run.group`, or a name for all but pe and seed: size, corpus, the hash's first digits."""
        return self.run.group or f"{self.model.name}-{self.data.name}-{self.group_sha256[:8]}"

    @property
    def name(self) -> str:
        """<pe>-s<seed>, in the tracker and in progress lines."""
        return f"{self.pe.label}-s{self.seed}"

    # -- identity ------------------------------------------------------------------------------

    @property
    def config_sha256(self) -> str:
        """Of every numeric value of this run that departs from its default."""
        return json_sha256(departures(self))

    @property
    def group_sha256(self) -> str:
        """Of the same without pe and seed: equal in all rows that may be compared."""
        return json_sha256(without(departures(self), ("pe", "seed")))

    def numeric_dict(self) -> dict[str, Any]:
        """Return every value that can change a number of this run."""
        return numeric_values(self)

    def group_dict(self) -> dict[str, Any]:
        """Return `numeric_dict` without pe and seed."""
        return without(self.numeric_dict(), ("pe", "seed"))


def without(values: Mapping[str, Any], factors: tuple[str, ...]) -> dict[str, Any]:
    """Return a nested mapping without the keys at some paths, such as pe or optim.lr."""
    left: dict[str, Any] = {}
    for key, value in values.items():
        below = tuple(
            factor.removeprefix(f"{key}.") for factor in factors if factor.startswith(f"{key}.")
        )
        if key not in factors:
            left[key] = without(value, below) if below else value
    return left


def differing_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return `key: old -> new` for each key, at any depth, whose values differ."""
    before = _flat(old)
    after = _flat(new)
    return [
        f"{key}: {show(before.get(key))} -> {show(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
    return flat
