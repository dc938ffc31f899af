"""The config of a variant: the sites of attention that rotate, and how. Files are in configs/pe."""

import hashlib
import itertools
import re
from typing import Annotated, Literal

from pydantic import Field

from rope_exp.config.schema import (
    Name,
    Natural,
    Positive,
    Sha256,
    labelled,
    numeric,
    numeric_values,
    rule,
    section,
    setting,
    settle,
)

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
_INPUTS = {"none": "", "sinusoidal": "Sinusoidal", "learned": "Learned"}
_BIASES = {"none": "", "alibi": "ALiBi", "t5": "T5"}
# The names of the schemes besides rotation, by input and bias; empty: rotation only.
SCHEMES = {
    (key, bias): "+".join(filter(None, (_INPUTS[key], _BIASES[bias])))
    for key, bias in itertools.product(_INPUTS, _BIASES)
}
# A name of ours describes a variant, and follows from its values.
OUR_NAMES = {*map(subset_name, SUBSETS), *SCHEMES.values()}

# Needs of keys that would have no effect, which suggests a mistake. Keys of any rotation (base,
# fraction, precision, start) need none: a sweep over variants sets them for all, including NoPE.
_ROTATION = {"pe.rotate": "needs at least one site in pe.rotate"}
_VALUES = {"pe.rotates_vo": "needs v or o in pe.rotate"}
_TRAINING = {"pe.trainable": "needs pe.trainable"}
_CODE = {"pe.code": "needs pe.code"}
_SHARE = {
    "attn.takes_heads": "attn.kind={0.attn.kind} rotates attn.rope_dim features; leave it as it is"
}
# Needs of an addition to attention.
ADDITION = {"attn.takes_additions": "attn.kind={0.attn.kind} has none; attn=softmax has"}


@section
class PeConfig:
    """Position encoding: rotation, and terms added to embeddings (`input`) or scores (`bias`).

    Rotation has frequencies theta_f = base^(-2f/n) on n = `fraction` of the features of `rotate`,
    in the layers given by `layers`.
    """

    # Name in tables and folders.
    name: Name = "QK-RoPE"
    # The sites that rotate: queries, keys, values, and outputs, which are rotated back.
    rotate: Sites = ("q", "k")
    base: Base = 10000.0
    # The share of each head's features that rotates.
    fraction: Fraction = numeric(1.0, needs=_SHARE)
    # true: theta itself is learned (raw); log: s is learned, with theta = theta0 e^s.
    trainable: bool | Literal["raw", "log"] = numeric(False, needs=_ROTATION, own_parameters=True)
    # The position of a sequence's first token.
    start: Natural = 0
    # Precision of angles and products. bf16 is for the study of noise: it is exact only up to
    # position 256.
    precision: Literal["float32", "bf16"] = "float32"
    # The base for v and o; null: as for q and k.
    base_vo: Base | None = numeric(None, needs=_VALUES)
    # The fraction for v and o; null: as for q and k.
    fraction_vo: Fraction | None = numeric(None, needs=_VALUES | _SHARE)
    # The layers that rotate; null: all; [1, 1, 1, 0]: all but every fourth.
    layers: Pattern | None = numeric(None, needs=_ROTATION)
    # The layers that rotate v and o; null: as for q and k.
    layers_vo: Pattern | None = numeric(None, needs=_VALUES)
    # Learning rate of learned frequencies, as a multiple of optim.lr.
    trainable_lr: Positive = numeric(1.0, needs=_TRAINING)
    # The unit that has its own learned frequencies; head: a key/value head of a layer.
    trainable_scope: Literal["model", "layer", "head"] = numeric(
        "model", needs=_TRAINING, own_parameters=True
    )
    # Added to the embeddings: sines and cosines of the position, or a learned row per position.
    input: Literal["none", "sinusoidal", "learned"] = numeric("none", own_parameters=True)
    # Amplitude of sines and cosines; null: as large as the initial embeddings.
    input_scale: Positive | None = numeric(
        None, needs={"pe.is_sinusoidal": "needs pe.input=sinusoidal"}
    )
    # Added to the scores: the distance times a slope per head, or a learned value per distance.
    bias: Literal["none", "alibi", "t5"] = numeric(
        "none",
        needs={
            "attn.keeps_keys": "attn.kind={0.attn.kind} has no scores of pairs to add it to",
            "predicts_tokens": "goes by places in the row, and positions of data={0.data.kind} are "
            "times; leave none",
        },
        own_parameters=True,
    )
    # A position encoding of your own: wave.Wave is the class Wave in wave.py, in a folder of
    # --config-dir.
    code: ClassOfFile | None = numeric(None, needs=ADDITION)
    # SHA-256 of that file's text; filled in.
    code_sha256: Sha256 | None = numeric(None, needs=_CODE, own_parameters=True)
    # The file's text; filled in.
    source: str | None = setting(None, needs=_CODE)

    def __post_init__(self) -> None:
        layers = shortest(self.layers)
        layers_vo = shortest(self.layers_vo or self.layers)
        settle(
            self,
            rotate=tuple(site for site in SITES if site in self.rotate),
            trainable=True if self.trainable == "raw" else self.trainable,
            base_vo=None if self.base_vo == self.base else self.base_vo,
            fraction_vo=None if self.fraction_vo == self.fraction else self.fraction_vo,
            layers=None if layers == EVERY else layers,
            layers_vo=None if layers_vo == layers else layers_vo,
        )
        # So `pe.rotate=[q,v]` alone renames the variant.
        if self.name in OUR_NAMES:
            settle(self, name=self._scheme or subset_name(self.rotate))

    # -- pairs of sites: qk or vo --------------------------------------------------------------

    def base_of(self, pair: str) -> float:
        """Return the base of the frequencies of q and k, or of v and o."""
        return self.base if pair == "qk" or self.base_vo is None else self.base_vo

    def num_features(self, head_dim: int, pair: str = "qk") -> int:
        """Return the rotating features of a head: a share, rounded down to whole pairs."""
        share = self.fraction if pair == "qk" else self.fraction_vo or self.fraction
        # In floats 0.58 of 100 is a little less than 58, and would lose a pair.
        return 2 * int(head_dim * share / 2 + 1e-9)

    @property
    def is_one_rotation(self) -> bool:
        """True if v and o always rotate by the frequencies of q and k.

        Learned frequencies start equal and move apart.
        """
        return self.base_vo is None and self.fraction_vo is None and not self.trainable

    @property
    def rotates_vo(self) -> bool:
        """True if v or o rotates."""
        return "v" in self.rotate or "o" in self.rotate

    @property
    def is_sinusoidal(self) -> bool:
        """True if sines and cosines are added to the embeddings."""
        return self.input == "sinusoidal"

    def sites_of(self, layer: int) -> tuple[str, ...]:
        """Return the sites that rotate in a layer, counted from 0."""
        layers = self.layers or EVERY
        patterns = {"qk": layers, "vo": self.layers_vo or layers}
        pairs = [pair for pair, on in patterns.items() if on[layer % len(on)]]
        return tuple(site for site in self.rotate if site in "".join(pairs))

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
        num_dims = ("model", "layer", "head").index(self.trainable_scope)
        return (num_layers, num_heads)[:num_dims]

    # -- names -----------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The variant in paths, tables and run names: vo_rope, or qk_rope-base500000."""
        label = re.sub(r"[^a-z0-9._+]+", "_", self.name.lower())
        if self.name not in OUR_NAMES:
            return label

        if self._scheme and self.rotate:
            label += labelled("rotate", self.rotate)
        for key, value in numeric_values(self, departing=True).items():
            if key not in ("name", "rotate", "input", "bias"):
                label += labelled(key, value)
        return label

    @property
    def _scheme(self) -> str:
        """The name of the position encoding besides rotation; empty: rotation only."""
        return SCHEMES[self.input, self.bias]


def source_sha256(source: str) -> str:
    """Return the SHA-256 of a file's text."""
    return hashlib.sha256(source.encode()).hexdigest()


def shortest(pattern: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shortest equivalent of a pattern of layers; None means every layer."""
    pattern = pattern or EVERY
    # The least shift that keeps the pattern, cyclically, is its period.
    shifts = range(1, len(pattern) + 1)
    return next(pattern[:n] for n in shifts if pattern[n:] + pattern[:n] == pattern)
