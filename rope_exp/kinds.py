"""Configs of the kinds of attention: sizes, costs and checks of one layer, without torch.

A kind has a dataclass here, a module in model/attention/ and a file in configs/attn. Counts refer
to one layer.

Shapes: H query heads, G key/value heads, K features of a head, D model width, T tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import Field

from rope_exp.identity import OpenShare, Positive, Rule, Size, labelled, numeric_values, section
from rope_exp.sections import SITES, ModelConfig, PeConfig

Even = Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]

# Learned decays start at 1 - 2^(-5-h) for head h. With more heads, the last would start beyond the
# slowest decay that can be learned, 1 - 2^-64, and get no gradient there.
MAX_LEARNED_HEADS = 59


class Kind:
    """Base class of attention kinds: dataclasses of config keys, starting with the kind's name."""

    kind: str
    # True if it keeps keys, which a window can forget; a state cannot forget.
    keeps_keys = True
    # True if it uses model.num_key_value_heads, model.head_dim and pe.fraction; False if it has
    # its own sizes.
    takes_heads = True
    # True if it supports model.qk_norm, model.token_shift and pe.code.
    takes_additions = False
    # True if it divides by a sum that eps can replace.
    has_floors = False
    # Why other sites than `sites` cannot rotate; empty: no reason of its own.
    why_not = ""

    @property
    def label(self) -> str:
        """The kind's name in tables: latent, or latent-kv_rank128 if a key departs."""
        departing = numeric_values(self, departing=True)
        departing.pop("kind", None)
        return self.kind + "".join(labelled(key, value) for key, value in departing.items())

    def small(self) -> Self:
        """Return this kind for two query heads over one shared key/value head."""
        return self

    def sites(self) -> tuple[str, ...]:
        """Return the sites that can rotate."""
        return SITES

    def rotary_dim(self, model: ModelConfig) -> int:
        """Return the number of features of a head, the last ones, that a rotation can act on."""
        return model.features_per_head

    def key_heads(self, model: ModelConfig) -> int:
        """Return the number of key heads; each may learn its own frequencies."""
        return model.num_key_value_heads

    def widths(self, model: ModelConfig) -> tuple[int, int]:
        """Return the features of a head's keys, and of its values and output."""
        return model.features_per_head, model.features_per_head

    def head_states(self, model: ModelConfig) -> int:
        """Return the count of numbers in the states of all query heads, as in training."""
        return 0

    def flops(self, model: ModelConfig, seq_len: int, *, causal: bool = True) -> int:
        """Return the operations of one training token without the weights': 3 times the forward's.

        With keys: 6 H (keys' width + values' width), times the mean number of keys of a token. A
        score and a weighted sum take 2 operations a feature each, three times with the backward
        pass. Masked or recomputed operations of a kernel are not counted.

        Args:
            causal: whether a token attends to no later one; with a state it never does.
        """
        pairs = seq_len * seq_len
        if causal:
            layers = range(model.num_hidden_layers)
            windows = [min(model.window_of(layer) or seq_len, seq_len) for layer in layers]
            # The mean over layers.
            pairs = sum(n * (n + 1) // 2 + (seq_len - n) * n for n in windows) // len(windows)
        return 6 * model.num_attention_heads * sum(self.widths(model)) * pairs // seq_len

    def rules(self, model: ModelConfig) -> Iterator[Rule]:
        """Yield what this kind alone refuses, as `config.rules` does."""
        yield from ()


class OwnSizes(Kind):
    """Base class of kinds with keys of nope_dim + rope_dim features, of which the last rotate."""

    nope_dim: int
    rope_dim: int

    takes_heads = False

    @property
    def key_dim(self) -> int:
        """Features of a head's queries and keys."""
        return self.nope_dim + self.rope_dim

    @property
    def out_dim(self) -> int:
        """Features of a head's values and output."""
        raise NotImplementedError

    def rotary_dim(self, model: ModelConfig) -> int:
        return self.rope_dim

    def widths(self, model: ModelConfig) -> tuple[int, int]:
        return self.key_dim, self.out_dim


class StateKind(Kind):
    """Base class of sums over the past: each token adds to a state, and each query reads it."""

    keeps_keys = False

    def flops(self, model: ModelConfig, seq_len: int, *, causal: bool = True) -> int:
        """Return 12 per number of the state: 2 to add, 2 to read, three times with backward."""
        return 12 * self.head_states(model)


# -- kinds that keep keys ------------------------------------------------------------------------


@section
class SoftmaxConfig(Kind):
    """Softmax attention with grouped queries."""

    kind: Literal["softmax"] = "softmax"
    # Add one learned score per head to each softmax; its value is 0.
    sink: bool = False

    takes_additions = True


@section
class LatentConfig(OwnSizes):
    """MLA (`attn=mla`, `attn=mla_vo`): K and V from one latent of `kv_rank`, plus a rotating key.

    The keys of a head are [k_C; k_R], nope_dim and rope_dim wide; all heads share k_R. With
    `value_rope` its values are [v_C; k_R], and its output is rotated back.
    """

    kind: Literal["latent"] = "latent"
    kv_rank: Size = 64
    # null: queries are projected from x itself.
    q_rank: Size | None = None
    nope_dim: Size = 48
    rope_dim: Even = 16
    # Width of v_C.
    value_dim: Size = 64
    value_rope: bool = False

    why_not = (
        "the values of attn=mla have no feature to rotate; attn=mla_vo (attn.value_rope=true) has"
    )

    def sites(self) -> tuple[str, ...]:
        return SITES if self.value_rope else ("q", "k")

    @property
    def out_dim(self) -> int:
        return self.value_dim + self.rope_dim * self.value_rope

    def key_heads(self, model: ModelConfig) -> int:
        # All heads share k_R.
        return 1


@section
class SharedConfig(OwnSizes):
    """Keys and values that share a tensor, in `groups`; nope_dim features never rotate.

    s1: values share the nope_dim features and have rope_dim features of their own. s2: values
    equal keys before rotation. s3: values are the nope_dim features only. DeepSeek-V4's attention
    is s2 with one group, a norm and a sink.
    """

    kind: Literal["shared"] = "shared"
    form: Literal["s1", "s2", "s3"] = "s2"
    groups: Size = 1
    nope_dim: Size = 48
    rope_dim: Even = 16
    # Normalize the shared tensor, and queries without a weight, before rotation.
    norm: bool = False
    # Add one learned score per head to each softmax; its value is 0.
    sink: bool = False

    why_not = "the values of attn.form=s3 have no feature to rotate; those of s1 and s2 have"

    def small(self) -> Self:
        return replace(self, groups=1)

    def sites(self) -> tuple[str, ...]:
        return ("q", "k") if self.form == "s3" else SITES

    @property
    def out_dim(self) -> int:
        return self.nope_dim if self.form == "s3" else self.key_dim

    def key_heads(self, model: ModelConfig) -> int:
        return self.groups

    def rules(self, model: ModelConfig) -> Iterator[Rule]:
        allowed = "must divide model.num_attention_heads={0.model.num_attention_heads}"
        yield model.num_attention_heads % self.groups, "attn.groups", allowed


# -- kinds that keep a state: counts are of the recurrent form, which adds to it and reads it -----


@section
class LinearConfig(StateKind):
    """Linear attention, phi = elu + 1: o_i = sum_j sim_ij v_j / max(sum_j sim_ij, eps).

    numerator: sim = (R phi(q))' (R phi(k)) in the numerator, phi(q)' phi(k) in the denominator (Su
    2021, eq. 19). both: rotated in the denominator, too, whose sum can be negative. one_plus_cos:
    sim = 1 + cos of the angle between rotated q and k.
    """

    kind: Literal["linear"] = "linear"
    form: Literal["numerator", "both", "one_plus_cos"] = "numerator"
    eps: Positive = 1e-6

    has_floors = True

    def head_states(self, model: ModelConfig) -> int:
        # Sums over keys of values and of a one; 1 + cos has one more key feature, which is 1.
        features = model.features_per_head
        keys = features + (self.form == "one_plus_cos")
        return model.num_attention_heads * keys * (features + 1)


@section
class RetentionConfig(StateKind):
    """RetNet's retention: weights gamma_h^(i-j) q_i' k_j / sqrt(K), gamma_h = 1 - 2^(-5-h).

    RMS norm over each head follows, without weights, after the output is rotated back; no gate.
    """

    kind: Literal["retention"] = "retention"

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head**2


@section
class DecayConfig(StateKind):
    """Weights gamma_h^(i-j) without queries and keys: h_i = gamma h_{i-1} + v_i, o_i = h_i.

    If V and O rotate, this is h_i = gamma e^(-I theta) h_{i-1} + v_i, a complex linear recurrence
    (Su 2025, related work).
    """

    kind: Literal["decay"] = "decay"
    # retnet: 1 - 2^(-5-h); learned: exp(-exp(nu)) per head, starting there; or one number for all.
    gamma: Literal["retnet", "learned"] | OpenShare = "retnet"
    # sqrt: LRU's factor sqrt(1 - gamma^2).
    normalise: Literal["none", "sqrt"] = "none"

    why_not = "attn.kind=decay rotates v and o, and has neither queries nor keys"

    def sites(self) -> tuple[str, ...]:
        return ("v", "o")

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head

    def rules(self, model: ModelConfig) -> Iterator[Rule]:
        allowed = (
            "begins at 1 - 2^(-5-h) of head h, which is too near 1 to be learned in more than "
            f"{MAX_LEARNED_HEADS} heads; model.num_attention_heads is {model.num_attention_heads}"
        )
        is_many = model.num_attention_heads > MAX_LEARNED_HEADS
        yield self.gamma == "learned" and is_many, "attn.gamma", allowed


AttnConfig = (
    SoftmaxConfig | LinearConfig | RetentionConfig | DecayConfig | LatentConfig | SharedConfig
)
SOFTMAX = SoftmaxConfig()


@dataclass(frozen=True)
class Architecture:
    """Specification of a decoder: everything that determines its parameters and computation."""

    model: ModelConfig
    pe: PeConfig
    vocab_size: int
    attn: AttnConfig = SOFTMAX
    # True if no token attends to a later one.
    causal: bool = True
    # Rows of the table of learned positions, if there is one.
    num_positions: int = 0
    # Real numbers predicted at a place; None: a token, by logits over the vocabulary.
    num_outputs: int | None = None

    @property
    def head_size(self) -> int:
        """Output features of the head."""
        return self.vocab_size if self.num_outputs is None else self.num_outputs
