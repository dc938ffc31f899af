"""Kinds of attention: what each holds, computes and caches, and which sites can rotate. No torch.

A kind is a dataclass here, a module in model/attention/ and a file in configs/attn. Counts are of
one layer. H query heads, G key/value heads, K features of a head, D model width, T tokens, w of a
window; the shared kinds have G groups of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from rope_exp.config.schema import Count, OpenShare, Positive, Rule, numeric
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import SITES, PeConfig
from rope_exp.system.errors import ConfigError

Even = Annotated[int, Rule("must be an even number of at least 2", lambda n: n >= 2 and n % 2 == 0)]
# Of the parameters of one layer's attention, by their names.
Shapes = Mapping[str, tuple[int, ...]]


class Kind:
    """What every kind says of itself. A field of a kind is a key of `attn`."""

    kind: str
    # Whether it keeps keys, which a window can forget; a state cannot.
    keeps_keys = True
    # Whether it takes model.num_key_value_heads and model.head_dim, or has sizes of its own.
    takes_heads = True

    def sites(self) -> tuple[str, ...]:
        """Return where a rotation can act."""
        return SITES

    def shapes(self, model: ModelConfig) -> Shapes:
        """Return the shape of every parameter; matrices are (out, in), as in torch."""
        raise NotImplementedError

    def head_splits(self, model: ModelConfig) -> Mapping[str, tuple[int, int]]:
        """Return, for each matrix that is one a head, the dimension of heads and their number."""
        heads = model.num_attention_heads
        groups = model.num_key_value_heads
        return {
            "q_proj.weight": (0, heads),
            "k_proj.weight": (0, groups),
            "v_proj.weight": (0, groups),
            "o_proj.weight": (1, heads),
        }

    def rotary_dim(self, model: ModelConfig) -> int:
        """Return how many features of a head, the last ones, a rotation could act on."""
        return model.features_per_head

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        """Return the fewest distinct numbers a token from which K and V are read as they are."""
        raise NotImplementedError

    def state(self, model: ModelConfig) -> int:
        """Return the numbers that are kept however many tokens there were."""
        return 0

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        """Return the operations of one training token beside the weights': 3 times the forward's.

        Nothing that a kernel computes and masks, or computes anew, is counted.
        """
        raise NotImplementedError

    def check(self, model: ModelConfig, pe: PeConfig) -> None:
        """Refuse what this kind cannot be.

        Raises:
            ConfigError: naming the key.
        """
        refused = [site for site in pe.rotate if site not in self.sites()]
        if refused:
            raise ConfigError("pe.rotate", list(pe.rotate), self.why_not(refused))

        if model.window is not None and not self.keeps_keys:
            raise ConfigError(
                "model.window", model.window, f"attn={self.kind} keeps a state, which cannot forget"
            )

        if self.takes_heads:
            return
        if model.head_dim is not None:
            raise ConfigError(
                "model.head_dim", model.head_dim, f"attn={self.kind} has its own sizes; leave null"
            )
        if model.num_key_value_heads != model.num_attention_heads:
            raise ConfigError(
                "model.num_key_value_heads",
                model.num_key_value_heads,
                f"attn={self.kind} has no such heads; leave it equal to model.num_attention_heads",
            )

    def why_not(self, refused: Sequence[str]) -> str:
        """Return why these sites cannot rotate."""
        raise NotImplementedError


# -- of keys and values --------------------------------------------------------------------------


@dataclass(frozen=True)
class SoftmaxConfig(Kind):
    """Softmax attention with grouped queries."""

    kind: Literal["softmax"] = numeric("softmax")

    def shapes(self, model: ModelConfig) -> Shapes:
        return _projections(model)

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        return 2 * model.num_key_value_heads * model.features_per_head

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        features = model.features_per_head
        return _softmax_flops(model, seq_len, features, features)


@dataclass(frozen=True)
class LatentConfig(Kind):
    """MLA: K and V of all heads from one latent of `kv_rank`, and a rotating key beside it.

    The keys of a head are [k_C; k_R], nope_dim and rope_dim wide, and k_R is shared by all heads.
    With `value_rope` its values are [v_C; k_R] likewise, and its output turns back.
    """

    kind: Literal["latent"] = numeric("latent")
    kv_rank: Count = numeric(64)
    # null: queries are made from x itself.
    q_rank: Count | None = numeric(None)
    nope_dim: Count = numeric(48)
    rope_dim: Even = numeric(16)
    # Of v_C.
    value_dim: Count = numeric(64)
    value_rope: bool = numeric(False)

    takes_heads = False

    def sites(self) -> tuple[str, ...]:
        return SITES if self.value_rope else ("q", "k")

    @property
    def key_dim(self) -> int:
        """The features of a head's queries and keys."""
        return self.nope_dim + self.rope_dim

    @property
    def out_dim(self) -> int:
        """The features of a head's values and output."""
        return self.value_dim + self.rope_dim * self.value_rope

    def shapes(self, model: ModelConfig) -> Shapes:
        heads = model.num_attention_heads
        width = model.hidden_size
        queries = heads * self.key_dim

        found: dict[str, tuple[int, ...]] = {"q_proj.weight": (queries, width)}
        if self.q_rank is not None:
            found = {
                "q_a_proj.weight": (self.q_rank, width),
                "q_a_layernorm.weight": (self.q_rank,),
                "q_b_proj.weight": (queries, self.q_rank),
            }
        return found | {
            "kv_a_proj_with_mqa.weight": (self.kv_rank + self.rope_dim, width),
            "kv_a_layernorm.weight": (self.kv_rank,),
            "kv_b_proj.weight": (heads * (self.nope_dim + self.value_dim), self.kv_rank),
            "o_proj.weight": (width, heads * self.out_dim),
        }

    def head_splits(self, model: ModelConfig) -> Mapping[str, tuple[int, int]]:
        names = ("q_proj.weight", "q_b_proj.weight", "kv_b_proj.weight")
        splits = dict.fromkeys(names, (0, model.num_attention_heads))
        return {**splits, "o_proj.weight": (1, model.num_attention_heads)}

    def rotary_dim(self, model: ModelConfig) -> int:
        return self.rope_dim

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        # The latent, and k_R: twice where keys hold it turned and values do not, or vice versa.
        is_twice = self.value_rope and ("k" in pe.rotate) != ("v" in pe.rotate)
        return self.kv_rank + self.rope_dim * (1 + is_twice)

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        return _softmax_flops(model, seq_len, self.key_dim, self.out_dim)

    def why_not(self, refused: Sequence[str]) -> str:
        return (
            "its values have no feature to rotate; attn=mla_vo (attn.value_rope=true) has, and "
            f"without it {' and '.join(refused)} must not stand there"
        )


@dataclass(frozen=True)
class SharedConfig(Kind):
    """Keys and values that share a tensor, in `groups`; nope_dim features never rotate.

    s1: values share the nope_dim features, and have rope_dim of their own. s2: values are the
    keys, before either rotates. s3: values are the nope_dim features alone.
    """

    kind: Literal["shared"] = numeric("shared")
    form: Literal["s1", "s2", "s3"] = numeric("s2")
    groups: Count = numeric(1)
    nope_dim: Count = numeric(48)
    rope_dim: Even = numeric(16)

    takes_heads = False

    def sites(self) -> tuple[str, ...]:
        return ("q", "k") if self.form == "s3" else SITES

    @property
    def key_dim(self) -> int:
        """The features of a head's queries and keys."""
        return self.nope_dim + self.rope_dim

    @property
    def out_dim(self) -> int:
        """The features of a head's values and output."""
        return self.nope_dim if self.form == "s3" else self.key_dim

    def shapes(self, model: ModelConfig) -> Shapes:
        heads = model.num_attention_heads
        width = model.hidden_size
        found = {
            "q_proj.weight": (heads * self.key_dim, width),
            "k_proj.weight": (self.groups * self.key_dim, width),
            "o_proj.weight": (width, heads * self.out_dim),
        }
        if self.form == "s1":
            found["v_proj.weight"] = (self.groups * self.rope_dim, width)
        return found

    def head_splits(self, model: ModelConfig) -> Mapping[str, tuple[int, int]]:
        splits = super().head_splits(model)
        of_groups = ("k_proj.weight", "v_proj.weight")
        return {**splits, **dict.fromkeys(of_groups, (0, self.groups))}

    def rotary_dim(self, model: ModelConfig) -> int:
        return self.rope_dim

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        # Beside the keys: what values have of their own, or the shared features turned otherwise.
        is_other = self.form == "s1" or ("k" in pe.rotate) != ("v" in pe.rotate)
        is_other &= self.form != "s3"
        return self.groups * (self.key_dim + self.rope_dim * is_other)

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        return _softmax_flops(model, seq_len, self.key_dim, self.out_dim)

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


# -- of a state ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearConfig(Kind):
    """Linear attention, phi = elu + 1: o_i = sum_j sim_ij v_j / max(sum_j sim_ij, eps).

    both: sim = (R phi(q))' (R phi(k)), which can be negative. numerator: so above, unrotated below
    (Su 2021, eq. 19). one_plus_cos: sim = 1 + cos of the angle between rotated q and k.
    """

    kind: Literal["linear"] = numeric("linear")
    form: Literal["numerator", "both", "one_plus_cos"] = numeric("numerator")
    eps: Positive = numeric(1e-6)

    keeps_keys = False

    def shapes(self, model: ModelConfig) -> Shapes:
        return _projections(model)

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        return 0

    def state(self, model: ModelConfig) -> int:
        # Sums over keys, of values and of one; 1 + cos has one key more, which is 1.
        features = model.features_per_head
        keys = features + (self.form == "one_plus_cos")
        return model.num_key_value_heads * keys * (features + 1)

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        features = model.features_per_head
        keys = features + (self.form == "one_plus_cos")
        return _state_flops(model, keys, features + 1)


@dataclass(frozen=True)
class RetentionConfig(Kind):
    """RetNet's retention: weights gamma_h^(i-j) q_i' k_j / sqrt(K), gamma_h = 1 - 2^(-5-h).

    Then RMS over each head, without weights, after the output has turned back; no gate.
    """

    kind: Literal["retention"] = numeric("retention")

    keeps_keys = False

    def shapes(self, model: ModelConfig) -> Shapes:
        return _projections(model)

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        return 0

    def state(self, model: ModelConfig) -> int:
        # Heads of one group forget at rates of their own.
        return model.num_attention_heads * model.features_per_head**2

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        return _state_flops(model, model.features_per_head, model.features_per_head)


@dataclass(frozen=True)
class DecayConfig(Kind):
    """Weights gamma_h^(i-j) alone, neither queries nor keys: h_i = gamma h_{i-1} + v_i, o_i = h_i.

    With V and O rotating that is h_i = gamma e^(-I theta) h_{i-1} + v_i, a complex linear
    recurrence (Su 2025, related work).
    """

    kind: Literal["decay"] = numeric("decay")
    # retnet: 1 - 2^(-5-h); learned: exp(-exp(nu)) a head, beginning there; or one number for all.
    gamma: Literal["retnet", "learned"] | OpenShare = numeric("retnet")
    # sqrt: by LRU's sqrt(1 - gamma^2).
    normalise: Literal["none", "sqrt"] = numeric("none")

    keeps_keys = False

    def sites(self) -> tuple[str, ...]:
        return ("v", "o")

    def shapes(self, model: ModelConfig) -> Shapes:
        every = _projections(model)
        found = {name: every[name] for name in ("v_proj.weight", "o_proj.weight")}
        return found | ({"nu": (model.num_attention_heads,)} if self.gamma == "learned" else {})

    def cached(self, model: ModelConfig, pe: PeConfig) -> int:
        return 0

    def state(self, model: ModelConfig) -> int:
        return model.num_attention_heads * model.features_per_head

    def flops(self, model: ModelConfig, seq_len: int) -> int:
        return _state_flops(model, 1, model.features_per_head)

    def why_not(self, refused: Sequence[str]) -> str:
        return (
            "attn=decay has neither queries nor keys; "
            f"{' and '.join(refused)} must not stand there, v and o may"
        )


AttnConfig = (
    SoftmaxConfig | LinearConfig | RetentionConfig | DecayConfig | LatentConfig | SharedConfig
)
SOFTMAX = SoftmaxConfig()


def _projections(model: ModelConfig) -> Shapes:
    """Return the matrices of LLaMA's attention."""
    width = model.hidden_size
    queries = model.num_attention_heads * model.features_per_head
    keys = model.num_key_value_heads * model.features_per_head
    return {
        "q_proj.weight": (queries, width),
        "k_proj.weight": (keys, width),
        "v_proj.weight": (keys, width),
        "o_proj.weight": (width, queries),
    }


def _softmax_flops(model: ModelConfig, seq_len: int, key_dim: int, out_dim: int) -> int:
    """Return 6 H (key_dim + out_dim) operations for each key that a token meets, on average.

    Of a score and a weighted sum, 2 a feature each, three times with the backward pass.
    """
    seen = min(model.window or seq_len, seq_len)
    pairs = seen * (seen + 1) // 2 + (seq_len - seen) * seen
    return 6 * model.num_attention_heads * (key_dim + out_dim) * pairs // seq_len


def _state_flops(model: ModelConfig, key_dim: int, out_dim: int) -> int:
    """Return the operations of the recurrent form: 2 to add to each number of a state, 2 to read.

    Three times that with the backward pass.
    """
    return 12 * model.num_attention_heads * key_dim * out_dim
