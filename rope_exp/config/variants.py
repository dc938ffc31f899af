"""A variant: which of attention's sites rotate, and how. It is data: a file in configs/pe."""

import itertools
import re
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from rope_exp.config.schema import Name, Natural, Rule, numeric
from rope_exp.system.errors import ConfigError

SITES = ("q", "k", "v", "o")

# In float32.
Base = Annotated[float, Rule("must be a number above 1 and at most 1e30", lambda x: 1 < x <= 1e30)]
Fraction = Annotated[float, Rule("must be a number above 0 and at most 1", lambda x: 0 < x <= 1)]


def subset_name(rotate: tuple[str, ...]) -> str:
    """Return the article's name of a subset of the sites: QK-RoPE, or NoPE for none."""
    return "".join(rotate).upper() + "-RoPE" if rotate else "NoPE"


SUBSETS = [subset for size in range(5) for subset in itertools.combinations(SITES, size)]
SUBSET_NAMES = frozenset(map(subset_name, SUBSETS))


@dataclass(frozen=True)
class PeConfig:
    """How position enters: theta_f = base^(-2f/n) on n = `fraction` of the features of `rotate`."""

    name: Name = numeric("QK-RoPE")
    rotate: tuple[Literal["q", "k", "v", "o"], ...] = numeric(("q", "k"))
    base: Base = numeric(10000.0)
    fraction: Fraction = numeric(1.0)
    trainable: bool = numeric(False)
    start: Natural = numeric(0)

    def __post_init__(self) -> None:
        if len(set(self.rotate)) < len(self.rotate):
            raise ConfigError(
                "pe.rotate", list(self.rotate), "each of q, k, v, o may stand there once"
            )
        if self.trainable and not self.rotate:
            raise ConfigError("pe.trainable", True, "needs at least one site in pe.rotate")

        ordered = tuple(site for site in SITES if site in self.rotate)
        object.__setattr__(self, "rotate", ordered)

        # A subset's name says the subset, so `pe.rotate=[q,v]` alone renames the variant.
        if self.name in SUBSET_NAMES:
            object.__setattr__(self, "name", subset_name(ordered))

    def num_features(self, head_dim: int) -> int:
        """Return how many of a head's features rotate: a share, rounded down to whole pairs."""
        return 2 * int(head_dim * self.fraction / 2)

    @property
    def label(self) -> str:
        """The variant in paths, tables and run names: vo_rope, or qk_rope-base500000."""
        label = re.sub(r"[^a-z0-9._+]+", "_", self.name.lower())
        if self.name not in SUBSET_NAMES:
            return label

        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("name", "rotate") or value == field.default:
                continue
            label += f"-{field.name}" if value is True else f"-{field.name}{value:g}"
        return label
