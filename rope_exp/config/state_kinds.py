"""Configs of the attention kinds that keep a state instead of keys.

Counts refer to one layer in its recurrent form, which adds to a state and reads it.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic.dataclasses import dataclass

from rope_exp.config.kind import Kind
from rope_exp.config.schema import SECTION, OpenShare, Positive, numeric
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.system.errors import ConfigError

# Learned decays start at 1 - 2^(-5-h) for head h. With more heads, the last would start beyond the
# slowest decay that can be learned, 1 - 2^-64, and get no gradient there.
MAX_LEARNED_HEADS = 59


class StateKind(Kind):
    """Base class of sums over the past: each token adds to a state, and each query reads it."""

    keeps_keys = False

    def flops(self, model: ModelConfig, seq_len: int, *, causal: bool = True) -> int:
        """Return 12 per number of the state: 2 to add, 2 to read, three times with backward."""
        return 12 * self.head_states(model)


@dataclass(frozen=True, config=SECTION)
class LinearConfig(StateKind):
    """Linear attention, phi = elu + 1: o_i = sum_j sim_ij v_j / max(sum_j sim_ij, eps).

    numerator: sim = (R phi(q))' (R phi(k)) in the numerator, phi(q)' phi(k) in the denominator (Su
    2021, eq. 19). both: rotated in the denominator, too, whose sum can be negative. one_plus_cos:
    sim = 1 + cos of the angle between rotated q and k.
    """

    kind: Literal["linear"] = numeric("linear")
    form: Literal["numerator", "both", "one_plus_cos"] = numeric("numerator")
    eps: Positive = numeric(1e-6)

    has_floors = True

    def head_states(self, model: ModelConfig) -> int:
        # Sums over keys of values and of a one; 1 + cos has one more key feature, which is 1.
        features = model.features_per_head
        keys = features + (self.form == "one_plus_cos")
        return model.num_attention_heads * keys * (features + 1)


@dataclass(frozen=True, config=SECTION)
class RetentionConfig(StateKind):
    """RetNet's retention: weights gamma_h^(i-j) q_i' k_j / sqrt(K), gamma_h = 1 - 2^(-5-h).

    RMS norm over each head follows, without weights, after the output is rotated back; no gate.
    """

    kind: Literal["retention"] = numeric("retention")

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head**2


@dataclass(frozen=True, config=SECTION)
class DecayConfig(StateKind):
    """Weights gamma_h^(i-j) without queries and keys: h_i = gamma h_{i-1} + v_i, o_i = h_i.

    If V and O rotate, this is h_i = gamma e^(-I theta) h_{i-1} + v_i, a complex linear recurrence
    (Su 2025, related work).
    """

    kind: Literal["decay"] = numeric("decay")
    # retnet: 1 - 2^(-5-h); learned: exp(-exp(nu)) per head, starting there; or one number for all.
    gamma: Literal["retnet", "learned"] | OpenShare = numeric("retnet")
    # sqrt: LRU's factor sqrt(1 - gamma^2).
    normalise: Literal["none", "sqrt"] = numeric("none")

    def sites(self) -> tuple[str, ...]:
        return ("v", "o")

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head

    def check(self, model: ModelConfig, pe: PeConfig) -> None:
        super().check(model, pe)
        heads = model.num_attention_heads
        if self.gamma == "learned" and heads > MAX_LEARNED_HEADS:
            raise ConfigError(
                "attn.gamma",
                self.gamma,
                f"begins at 1 - 2^(-5-h) of head h, which is too near 1 to be learned in more than "
                f"{MAX_LEARNED_HEADS} heads; model.num_attention_heads is {heads}",
            )

    def why_not(self, refused: Sequence[str]) -> str:
        return (
            "attn.kind=decay has neither queries nor keys; "
            f"{' and '.join(refused)} must not stand there, v and o may"
        )
