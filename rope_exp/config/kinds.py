"""Configs of the attention kinds that keep keys, and the union of all kinds.

A kind has a dataclass here or in `state_kinds`, a module in model/attention/ and a file in
configs/attn. Counts refer to one layer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self

from pydantic.dataclasses import dataclass

from rope_exp.config.kind import Even, Kind
from rope_exp.config.schema import SECTION, Size, numeric
from rope_exp.config.sections import ModelConfig
from rope_exp.config.state_kinds import DecayConfig, LinearConfig, RetentionConfig
from rope_exp.config.variants import SITES, PeConfig
from rope_exp.system.errors import ConfigError


class KeysKind(Kind):
    """Base class of softmax over keys; its cost grows with the keys that a query attends to."""

    def flops(self, model: ModelConfig, seq_len: int, *, causal: bool = True) -> int:
        """Return 6 H (keys' width + values' width), times the mean number of keys of a token.

        A score and a weighted sum take 2 operations a feature each, three times with the backward
        pass.
        """
        pairs = seq_len * seq_len
        if causal:
            layers = range(model.num_hidden_layers)
            windows = [min(model.window_of(layer) or seq_len, seq_len) for layer in layers]
            # The mean over layers.
            pairs = sum(n * (n + 1) // 2 + (seq_len - n) * n for n in windows) // len(windows)
        return 6 * model.num_attention_heads * sum(self.widths(model)) * pairs // seq_len


class OwnSizes(KeysKind):
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


@dataclass(frozen=True, config=SECTION)
class SoftmaxConfig(KeysKind):
    """Softmax attention with grouped queries."""

    kind: Literal["softmax"] = numeric("softmax")
    # Add one learned score per head to each softmax; its value is 0.
    sink: bool = numeric(False)

    takes_additions = True


@dataclass(frozen=True, config=SECTION)
class LatentConfig(OwnSizes):
    """MLA (`attn=mla`, `attn=mla_vo`): K and V from one latent of `kv_rank`, plus a rotating key.

    The keys of a head are [k_C; k_R], nope_dim and rope_dim wide; all heads share k_R. With
    `value_rope` its values are [v_C; k_R], and its output is rotated back.
    """

    kind: Literal["latent"] = numeric("latent")
    kv_rank: Size = numeric(64)
    # null: queries are projected from x itself.
    q_rank: Size | None = numeric(None)
    nope_dim: Size = numeric(48)
    rope_dim: Even = numeric(16)
    # Width of v_C.
    value_dim: Size = numeric(64)
    value_rope: bool = numeric(False)

    def sites(self) -> tuple[str, ...]:
        return SITES if self.value_rope else ("q", "k")

    @property
    def out_dim(self) -> int:
        return self.value_dim + self.rope_dim * self.value_rope

    def key_heads(self, model: ModelConfig) -> int:
        # All heads share k_R.
        return 1

    def why_not(self, refused: Sequence[str]) -> str:
        return (
            "the values of attn=mla have no feature to rotate; attn=mla_vo (attn.value_rope=true) "
            f"has, and without it {' and '.join(refused)} must not stand there"
        )


@dataclass(frozen=True, config=SECTION)
class SharedConfig(OwnSizes):
    """Keys and values that share a tensor, in `groups`; nope_dim features never rotate.

    s1: values share the nope_dim features and have rope_dim features of their own. s2: values
    equal keys before rotation. s3: values are the nope_dim features only. DeepSeek-V4's attention
    is s2 with one group, a norm and a sink.
    """

    kind: Literal["shared"] = numeric("shared")
    form: Literal["s1", "s2", "s3"] = numeric("s2")
    groups: Size = numeric(1)
    nope_dim: Size = numeric(48)
    rope_dim: Even = numeric(16)
    # Normalize the shared tensor, and queries without a weight, before rotation.
    norm: bool = numeric(False)
    # Add one learned score per head to each softmax; its value is 0.
    sink: bool = numeric(False)

    def small(self) -> Self:
        return replace(self, groups=1)

    def sites(self) -> tuple[str, ...]:
        return ("q", "k") if self.form == "s3" else SITES

    @property
    def out_dim(self) -> int:
        return self.nope_dim if self.form == "s3" else self.key_dim

    def key_heads(self, model: ModelConfig) -> int:
        return self.groups

    def check(self, model: ModelConfig, pe: PeConfig) -> None:
        super().check(model, pe)
        if model.num_attention_heads % self.groups:
            raise ConfigError(
                "attn.groups",
                self.groups,
                f"must divide model.num_attention_heads={model.num_attention_heads}",
            )

    def why_not(self, refused: Sequence[str]) -> str:
        return (
            "the values of attn.form=s3 have no feature to rotate; those of s1 and s2 have, and "
            f"here {' and '.join(refused)} must not stand there"
        )


AttnConfig = (
    SoftmaxConfig | LinearConfig | RetentionConfig | DecayConfig | LatentConfig | SharedConfig
)
SOFTMAX = SoftmaxConfig()
