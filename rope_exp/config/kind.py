"""The interface of attention kinds: sizes, costs and checks of one layer, without torch.

Shapes: H query heads, G key/value heads, K features of a head, D model width, T tokens.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field

from rope_exp.config.schema import labelled, numeric_values
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import SITES, PeConfig
from rope_exp.system.errors import ConfigError

Even = Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]


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

    @property
    def label(self) -> str:
        """The kind's name in tables: latent, or latent-kv_rank128 if a key departs."""
        found: dict[str, Any] = numeric_values(self, departing=True)
        found.pop("kind", None)
        return self.kind + "".join(labelled(key, value) for key, value in found.items())

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

        Masked or recomputed operations of a kernel are not counted.

        Args:
            causal: whether a token attends to no later one; with a state it never does.
        """
        raise NotImplementedError

    def check(self, model: ModelConfig, pe: PeConfig) -> None:
        """Refuse unsupported settings.

        Raises:
            ConfigError: naming the key.
        """
        refused = [site for site in pe.rotate if site not in self.sites()]
        if refused:
            raise ConfigError("pe.rotate", list(pe.rotate), self.why_not(refused))

        name = f"attn.kind={self.kind}"
        if model.window is not None and not self.keeps_keys:
            raise ConfigError(
                "model.window", model.window, f"{name} keeps a state, which cannot forget"
            )
        if pe.bias != "none" and not self.keeps_keys:
            raise ConfigError("pe.bias", pe.bias, f"{name} has no scores of pairs to add it to")
        additions = {
            "pe.code": pe.code,
            "model.qk_norm": model.qk_norm,
            "model.token_shift": model.token_shift,
        }
        for key, value in additions.items():
            if value and not self.takes_additions:
                raise ConfigError(key, value, f"{name} has none; attn=softmax has")
        if self.takes_heads:
            _check_heads(model)
            return

        if model.head_dim is not None:
            raise ConfigError(
                "model.head_dim", model.head_dim, f"{name} has its own sizes; leave null"
            )
        if model.num_key_value_heads != model.num_attention_heads:
            raise ConfigError(
                "model.num_key_value_heads",
                model.num_key_value_heads,
                f"{name} has no such heads; leave it equal to model.num_attention_heads",
            )
        for key in ("fraction", "fraction_vo"):
            share = getattr(pe, key)
            if share not in (1, None):
                allowed = f"{name} rotates attn.rope_dim features; leave it as it is"
                raise ConfigError(f"pe.{key}", share, allowed)

    def why_not(self, refused: Sequence[str]) -> str:
        """Return the reason why these sites cannot rotate."""
        return (
            f"attn.kind={self.kind} can rotate {' and '.join(self.sites()) or 'nothing'}; "
            f"{' and '.join(refused)} must not stand there"
        )


def _check_heads(model: ModelConfig) -> None:
    heads = model.num_attention_heads
    if model.head_dim is None and model.hidden_size % heads:
        raise ConfigError(
            "model.num_attention_heads",
            heads,
            f"must divide model.hidden_size={model.hidden_size}, or model.head_dim be set",
        )
