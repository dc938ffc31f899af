"""What every kind of attention says of itself, of one layer, without torch.

H query heads, G key/value heads, K features of a head, D model width, T tokens.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field

from rope_exp.config.probes import Probe
from rope_exp.config.schema import labelled, numeric_values
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import SITES, PeConfig
from rope_exp.system.errors import ConfigError

Even = Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]


class Kind:
    """A kind is a dataclass below this, whose first field is its name and whose fields are keys."""

    kind: str
    # Whether it keeps keys, which a window can forget; a state cannot.
    keeps_keys = True
    # Whether it takes model.num_key_value_heads, model.head_dim and pe.fraction, or has sizes of
    # its own.
    takes_heads = True
    # Whether it takes model.qk_norm, and model.token_shift.
    takes_norm = False
    takes_shift = False

    @property
    def label(self) -> str:
        """The kind in tables: latent, or latent-kv_rank128 where a key departs."""
        found: dict[str, Any] = numeric_values(self, departing=True)
        found.pop("kind", None)
        return self.kind + "".join(labelled(key, value) for key, value in found.items())

    def small(self) -> Self:
        """Return this kind for two query heads over one shared key/value head."""
        return self

    def sites(self) -> tuple[str, ...]:
        """Return where a rotation can act."""
        return SITES

    def rotary_dim(self, model: ModelConfig) -> int:
        """Return how many features of a head, the last ones, a rotation could act on."""
        return model.features_per_head

    def key_heads(self, model: ModelConfig) -> int:
        """Return the number of heads of keys, each of which may learn frequencies of its own."""
        return model.num_key_value_heads

    def widths(self, model: ModelConfig) -> tuple[int, int]:
        """Return the features of a head's keys, and of its values and output."""
        return model.features_per_head, model.features_per_head

    def head_states(self, model: ModelConfig) -> int:
        """Return the numbers of a state for each query head, as training computes them."""
        return 0

    def flops(self, model: ModelConfig, seq_len: int, *, causal: bool = True) -> int:
        """Return the operations of one training token beside the weights': 3 times the forward's.

        Nothing that a kernel computes and masks, or computes anew, is counted.

        Args:
            causal: whether a token meets no later one; a state never does.
        """
        raise NotImplementedError

    @classmethod
    def probes(cls) -> tuple[Probe, ...]:
        """Return what this kind can be asked of the probes that not every kind can."""
        return ()

    def check(self, model: ModelConfig, pe: PeConfig) -> None:
        """Refuse what this kind cannot be.

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
        if model.qk_norm and not self.takes_norm:
            raise ConfigError(
                "model.qk_norm", True, f"{name} has none; attn=softmax has, and here leave false"
            )
        if model.token_shift and not self.takes_shift:
            raise ConfigError(
                "model.token_shift",
                True,
                f"{name} has none; attn=softmax has, and here leave false",
            )
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
        """Return why these sites cannot rotate."""
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
