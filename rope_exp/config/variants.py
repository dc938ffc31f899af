"""The config of a variant: the sites of attention that rotate, and how. Files are in configs/pe."""

import hashlib
import itertools
import re
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from rope_exp.config.schema import (
    SECTION,
    Name,
    Natural,
    Positive,
    Sha256,
    labelled,
    numeric,
    numeric_values,
    rule,
    setting,
)
from rope_exp.system.errors import ConfigError

SITES = ("q", "k", "v", "o")

# Safe in float32.
Base = Annotated[float, Field(gt=1, le=1e30)]
Sites = Annotated[
    tuple[Literal["q", "k", "v", "o"], ...],
    rule(
        "must be a list of some of q, k, v, o, each at most once",
        lambda sites: len(set(sites)) == len(sites),
    ),
]
EVERY = (1,)  # as a pattern of layers
# q and k share frequencies; so do v and o.
PAIRS = ("qk", "vo")
# Buckets of distances that a head of T5's bias distinguishes.
T5_BUCKETS = 32
# Names of learned frequencies: the first if one pair's are learned, both if both pairs' are.
LEARNED = ("inv_freq", "inv_freq_vo")
Pattern = Annotated[
    tuple[int, ...],
    rule(
        "must be a list of 1 (a layer that has it) and 0, with at least one 1, repeated over "
        "the layers",
        lambda pattern: set(pattern) <= {0, 1} and 1 in pattern,
    ),
]
Fraction = Annotated[float, Field(gt=0, le=1)]
ClassOfFile = Annotated[
    str,
    rule(
        "must be FILE.CLASS, such as wave.Wave",
        re.compile(r"[A-Za-z_]\w{0,63}\.[A-Za-z_]\w{0,63}", re.ASCII).fullmatch,
    ),
]


def subset_name(rotate: tuple[str, ...]) -> str:
    """Return the article's name for a subset of the sites, e.g. QK-RoPE; NoPE for none."""
    return "".join(rotate).upper() + "-RoPE" if rotate else "NoPE"


SUBSETS = [subset for size in range(5) for subset in itertools.combinations(SITES, size)]
SUBSET_NAMES = frozenset(map(subset_name, SUBSETS))


@dataclass(frozen=True, config=SECTION)
class PeConfig:
    """Position encoding: rotation, and terms added to embeddings (`input`) or scores (`bias`).

    Rotation has frequencies theta_f = base^(-2f/n) on n = `fraction` of the features of `rotate`,
    in the layers given by `layers`.
    """

    # Name in tables and folders.
    name: Name = numeric("QK-RoPE")
    # The sites that rotate: queries, keys, values, and outputs, which are rotated back.
    rotate: Sites = numeric(("q", "k"))
    base: Base = numeric(10000.0)
    # The share of each head's features that rotates.
    fraction: Fraction = numeric(1.0)
    # true: theta itself is learned (raw); log: s is learned, with theta = theta0 e^s.
    trainable: bool | Literal["raw", "log"] = numeric(False)
    # The position of a sequence's first token.
    start: Natural = numeric(0)
    # Precision of angles and products. bf16 is for the study of noise: it is exact only up to
    # position 256.
    precision: Literal["float32", "bf16"] = numeric("float32")
    # The base for v and o; null: as for q and k.
    base_vo: Base | None = numeric(None)
    # The fraction for v and o; null: as for q and k.
    fraction_vo: Fraction | None = numeric(None)
    # The layers that rotate; null: all; [1, 1, 1, 0]: all but every fourth.
    layers: Pattern | None = numeric(None)
    # The layers that rotate v and o; null: as for q and k.
    layers_vo: Pattern | None = numeric(None)
    # Learning rate of learned frequencies, as a multiple of optim.lr.
    trainable_lr: Positive = numeric(1.0)
    # The unit that has its own learned frequencies; head: a key/value head of a layer.
    trainable_scope: Literal["model", "layer", "head"] = numeric("model")
    # Added to the embeddings: sines and cosines of the position, or a learned row per position.
    input: Literal["none", "sinusoidal", "learned"] = numeric("none")
    # Amplitude of sines and cosines; null: as large as the initial embeddings.
    input_scale: Positive | None = numeric(None)
    # Added to the scores: the distance times a slope per head, or a learned value per distance.
    bias: Literal["none", "alibi", "t5"] = numeric("none")
    # A position encoding of your own: wave.Wave is the class Wave in wave.py, in a folder of
    # --config-dir.
    code: ClassOfFile | None = numeric(None)
    # SHA-256 of that file's text; filled in.
    code_sha256: Sha256 | None = numeric(None)
    # The file's text; filled in.
    source: str | None = setting(None)

    def __post_init__(self) -> None:
        ordered = tuple(site for site in SITES if site in self.rotate)
        object.__setattr__(self, "rotate", ordered)
        self._one_spelling()
        self._refuse_idle_keys()
        self._check_code()

        # A scheme's name describes the scheme, so `pe.rotate=[q,v]` alone renames the variant.
        if self.name in SUBSET_NAMES | SCHEME_NAMES.keys():
            object.__setattr__(self, "name", self._scheme() or subset_name(ordered))

    # -- pairs of sites: qk or vo --------------------------------------------------------------

    def base_of(self, pair: str) -> float:
        """Return the base of the frequencies of q and k, or of v and o."""
        return self.base if pair == "qk" or self.base_vo is None else self.base_vo

    def num_features(self, head_dim: int, pair: str = "qk") -> int:
        """Return the rotating features of a head: a share, rounded down to whole pairs."""
        own = pair == "vo" and self.fraction_vo is not None
        share = self.fraction_vo if own else self.fraction
        assert share is not None
        # In floats 0.58 of 100 is a little less than 58, and would lose a pair.
        return 2 * int(head_dim * share / 2 + 1e-9)

    @property
    def is_one_rotation(self) -> bool:
        """True if v and o always rotate by the frequencies of q and k.

        Learned frequencies start equal and move apart.
        """
        return self.base_vo is None and self.fraction_vo is None and not self.trainable

    def sites_of(self, layer: int) -> tuple[str, ...]:
        """Return the sites that rotate in a layer, counted from 0."""
        patterns = {"qk": self.layers, "vo": self.layers_vo or self.layers}
        found = []
        for pair, pattern in patterns.items():
            if pattern is None or pattern[layer % len(pattern)]:
                found += [site for site in pair if site in self.rotate]
        return tuple(found)

    @property
    def trained_pairs(self) -> tuple[str, ...]:
        """The rotating pairs of sites, if frequencies are learned."""
        return tuple(pair for pair in PAIRS if self.trainable and set(pair) & set(self.rotate))

    @property
    def learned_names(self) -> tuple[str, ...]:
        """The names of the learned frequencies in the rotation's module."""
        return LEARNED[: len(self.trained_pairs)]

    def trained_shape(self, num_layers: int, num_heads: int) -> tuple[int, ...]:
        """Return the leading shape of learned frequencies: (), (layers,) or (layers, key heads)."""
        shapes: dict[str, tuple[int, ...]] = {
            "model": (),
            "layer": (num_layers,),
            "head": (num_layers, num_heads),
        }
        return shapes[self.trainable_scope]

    # -- names and spellings -------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The variant in paths, tables and run names: vo_rope, or qk_rope-base500000."""
        label = re.sub(r"[^a-z0-9._+]+", "_", self.name.lower())
        if self.name not in SUBSET_NAMES | SCHEME_NAMES.keys():
            return label

        if self.name in SCHEME_NAMES and self.rotate:
            label += labelled("rotate", self.rotate)
        said = {"name", "rotate", *SCHEME_NAMES.get(self.name, {})}
        for key, value in numeric_values(self, departing=True).items():
            if key not in said:
                label += labelled(key, value)
        return label

    def _scheme(self) -> str | None:
        """Return the name of the position encoding besides rotation; None: rotation only."""
        own = {"input": self.input, "bias": self.bias}
        departing = {key: value for key, value in own.items() if value != "none"}
        names = [name for name, keys in SCHEME_NAMES.items() if keys == departing]
        return names[0] if names else None

    def _one_spelling(self) -> None:
        """Normalize equivalent settings to the same values."""
        settled: dict[str, Any] = {}
        if self.trainable == "raw":
            settled["trainable"] = True
        if self.base_vo == self.base:
            settled["base_vo"] = None
        if self.fraction_vo == self.fraction:
            settled["fraction_vo"] = None
        layers = shortest(self.layers)
        layers_vo = shortest(self.layers_vo or self.layers)
        settled["layers"] = None if layers == EVERY else layers
        settled["layers_vo"] = None if layers_vo == layers else layers_vo
        for key, value in settled.items():
            object.__setattr__(self, key, value)

    def _check_code(self) -> None:
        """Refuse a text that is not the hash's, and a name of ours for other code.

        Raises:
            ConfigError: naming the key.
        """
        if self.source is not None and self.code_sha256 != source_sha256(self.source):
            raise ConfigError("pe.source", ..., "was changed: pe.code_sha256 is of another text")
        if self.code is not None and self.name in SUBSET_NAMES | SCHEME_NAMES.keys():
            raise ConfigError("pe.name", self.name, "is taken; with pe.code give a name of its own")

    def _refuse_idle_keys(self) -> None:
        """Refuse a key that would have no effect, which suggests a mistake.

        Keys of any rotation (base, fraction, precision, start) are exempt: a sweep over variants
        sets them for all, including NoPE.

        Raises:
            ConfigError: naming the key.
        """
        turns_vo = {"v", "o"} & set(self.rotate)
        needs = {
            "trainable": (bool(self.rotate), "at least one site in pe.rotate"),
            "layers": (bool(self.rotate), "at least one site in pe.rotate"),
            "base_vo": (turns_vo, "v or o in pe.rotate"),
            "fraction_vo": (turns_vo, "v or o in pe.rotate"),
            "layers_vo": (turns_vo, "v or o in pe.rotate"),
            "trainable_lr": (self.trainable, "pe.trainable"),
            "trainable_scope": (self.trainable, "pe.trainable"),
            "input_scale": (self.input == "sinusoidal", "pe.input=sinusoidal"),
            "code_sha256": (self.code, "pe.code"),
        }
        if self.source is not None and self.code is None:
            raise ConfigError("pe.source", ..., "needs pe.code")
        departing = numeric_values(self, departing=True)
        for key, (is_met, what) in needs.items():
            if key in departing and not is_met:
                raise ConfigError(f"pe.{key}", departing[key], f"needs {what}")


def source_sha256(source: str) -> str:
    """Return the SHA-256 of a file's text."""
    return hashlib.sha256(source.encode()).hexdigest()


def shortest(pattern: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shortest equivalent of a pattern of layers; None means every layer."""
    pattern = pattern or EVERY
    for length in range(1, len(pattern)):
        if len(pattern) % length == 0 and pattern == pattern[:length] * (len(pattern) // length):
            return pattern[:length]
    return pattern


def _scheme_names() -> dict[str, dict[str, str]]:
    """Return the names of the schemes besides rotation, and the keys that each name implies."""
    inputs = {"": {}, "Sinusoidal": {"input": "sinusoidal"}, "Learned": {"input": "learned"}}
    biases = {"": {}, "ALiBi": {"bias": "alibi"}, "T5": {"bias": "t5"}}
    found = {}
    for (of_input, keys), (of_bias, more) in itertools.product(inputs.items(), biases.items()):
        if keys or more:
            found["+".join(filter(None, (of_input, of_bias)))] = {**keys, **more}
    return found


SCHEME_NAMES = _scheme_names()
