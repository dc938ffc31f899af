"""The configuration of one run, converted once from a plain mapping and checked.

Config keys equal dataclass paths: `optim.lr` is `RunConfig.optim.lr`. Two hashes of the numeric
values that depart from their defaults identify runs: `config_sha256` a single run, `group_sha256`
the runs that may share a table.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rope_exp.config.architecture import Architecture
from rope_exp.config.kinds import AttnConfig, SoftmaxConfig
from rope_exp.config.learning import CosineConfig, MuonConfig, OptimConfig, ScheduleConfig
from rope_exp.config.rules import rules
from rope_exp.config.schema import (
    Name,
    Seed,
    Sha256,
    convert,
    numeric_values,
    refuse,
    section,
    setting,
)
from rope_exp.config.sections import (
    MIN_VOCAB_SIZE,
    DataConfig,
    LaunchConfig,
    ModelConfig,
    PlaceConfig,
    TokenizerConfig,
    TrackerConfig,
    TrainConfig,
)
from rope_exp.config.variants import PeConfig
from rope_exp.system.errors import show
from rope_exp.system.files import json_sha256

FACTORS = ("pe", "seed")  # the keys in which runs of one group may differ
DEFAULT_OUTPUT = Path("results/runs")


@section
class RunConfig:
    """The configuration of one run. `from_dict` converts a plain mapping."""

    # Seed of the initial weights, and of the order of batches unless data.seed is set.
    seed: Seed = 0
    # Name of the row in tables, if rows differ in more than the variant; campaigns set it.
    row_name: Name | None = setting(None)
    # SHA-256 of the initial weights, taken from the run that run.init_from names; null: weights
    # are drawn from the seed.
    init_weights: Sha256 | None = None
    pe: PeConfig = PeConfig()
    attn: Annotated[AttnConfig, Field(discriminator="kind")] = SoftmaxConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    optim: Annotated[OptimConfig | MuonConfig, Field(discriminator="name")] = OptimConfig()
    schedule: Annotated[ScheduleConfig, Field(discriminator="name")] = CosineConfig()
    train: TrainConfig = TrainConfig()
    tracker: TrackerConfig = setting(TrackerConfig())
    launch: LaunchConfig = setting(LaunchConfig())
    run: PlaceConfig = setting(PlaceConfig())

    def __post_init__(self) -> None:
        refuse(self, rules(self))

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "RunConfig":
        """Convert a plain mapping; missing keys keep their defaults.

        Raises:
            ConfigError: an unknown key, a wrong type, a value out of range or an unsupported
                combination.
        """
        config: RunConfig = convert(RunConfig, values)
        return config

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
    def num_own_ids(self) -> int:
        """The number of the decoder's ids beyond the tokenizer's: one under mlm, the mask."""
        return 1 if self.train.objective == "mlm" else 0

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
            return self.data.task.vocab_size
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
