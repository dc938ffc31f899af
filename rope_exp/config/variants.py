"""A variant: which of attention's sites rotate, and how. It is data: a file in configs/pe."""

import itertools
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from rope_exp.config.schema import Name, Natural, Rule, labelled, numeric, numeric_values
from rope_exp.system.errors import ConfigError

SITES = ("q", "k", "v", "o")

# In float32.
Base = Annotated[float, Rule("must be a number above 1 and at most 1e30", lambda x: 1 < x <= 1e30)]
Sites = Annotated[
    tuple[Literal["q", "k", "v", "o"], ...],
    Rule(
        "must be a list of some of q, k, v, o, each of which may stand there once",
        lambda sites: len(set(sites)) == len(sites),
    ),
]
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
    rotate: Sites = numeric(("q", "k"))
    base: Base = numeric(10000.0)
    fraction: Fraction = numeric(1.0)
    trainable: bool = numeric(False)
    start: Natural = numeric(0)
    # Of angles and products. bf16 is for the study of noise: it holds no position above 256.
    precision: Literal["float32", "bf16"] = numeric("float32")

    def __post_init__(self) -> None:
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

        for key, value in numeric_values(self, departing=True).items():
            if key not in ("name", "rotate"):
                label += labelled(key, value)
        return label
