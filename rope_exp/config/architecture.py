"""All that decides what a decoder is, and how many parameters that makes. No torch."""

from dataclasses import dataclass, replace
from math import prod

from rope_exp.config.kind import llama_shapes
from rope_exp.config.kinds import SOFTMAX, AttnConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import T5_BUCKETS, PeConfig
from rope_exp.system.errors import ConfigError

# Of model.match_params: how far the nearest whole width of an MLP may leave it.
NEAR = 1e-3


@dataclass(frozen=True)
class Architecture:
    """All that decides what a decoder's parameters are and what it computes."""

    model: ModelConfig
    pe: PeConfig
    vocab_size: int
    attn: AttnConfig = SOFTMAX
    # Whether a token meets no later one.
    causal: bool = True
    # How many positions can be learned, where they are.
    num_positions: int = 0
    # How many real numbers are predicted at a place; None: a token, by the vocabulary's logits.
    num_outputs: int | None = None

    @property
    def head_size(self) -> int:
        """The features of the head."""
        return self.vocab_size if self.num_outputs is None else self.num_outputs


def matrix_weights(attn: AttnConfig, model: ModelConfig) -> int:
    """Return the number of weights of a layer's attention that multiply a token."""
    return sum(prod(shape) for shape in attn.shapes(model).values() if len(shape) == 2)


def num_weights(attn: AttnConfig, model: ModelConfig) -> int:
    """Return the number of all parameters of a layer's attention."""
    return sum(map(prod, attn.shapes(model).values()))


def mlp_weights(model: ModelConfig) -> int:
    """Return the number of weights of a layer's SwiGLU."""
    return 3 * model.hidden_size * model.intermediate_size


def llama_matrices(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the matrices that a decoder of these sizes has in transformers."""
    config = architecture.model
    width = config.hidden_size
    inner = config.intermediate_size
    layer = {f"self_attn.{name}": shape for name, shape in llama_shapes(config).items()}
    layer |= {f"mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
    layer["mlp.down_proj.weight"] = (width, inner)

    found = {
        f"model.layers.{number}.{name}": shape
        for number in range(config.num_hidden_layers)
        for name, shape in layer.items()
    }
    found["model.embed_tokens.weight"] = (architecture.vocab_size, width)
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = (architecture.vocab_size, width)
    return found


def num_parameters(architecture: Architecture) -> int:
    """Return the number of parameters, a tied head counted once."""
    model = architecture.model

    num_rows = architecture.vocab_size
    if not model.tie_word_embeddings:
        num_rows += architecture.head_size
    embeddings = num_rows * model.hidden_size
    a_layer = num_weights(architecture.attn, model) + mlp_weights(model) + 2 * model.hidden_size
    of_positions = _num_of_positions(architecture)
    return embeddings + model.num_hidden_layers * a_layer + model.hidden_size + of_positions


def _num_of_positions(architecture: Architecture) -> int:
    """Return the number of parameters that a variant has beside those of every decoder."""
    model = architecture.model
    attn = architecture.attn
    pe = architecture.pe

    times = prod(pe.trained_shape(model.num_hidden_layers, attn.key_heads(model)))
    found = 0
    for pair in pe.trained_pairs:
        found += times * pe.num_features(attn.rotary_dim(model), pair) // 2
    if pe.input == "learned":
        found += architecture.num_positions * model.hidden_size
    if pe.bias == "t5":
        found += T5_BUCKETS * model.num_attention_heads
    return found


def matched(architecture: Architecture) -> ModelConfig:
    """Return the model with the width of its MLP at which it has `match_params` parameters.

    Raises:
        ConfigError: no width comes within a thousandth.
    """
    model = architecture.model
    wanted = model.match_params
    assert wanted is not None

    # Parameters are a straight line over the width.
    of_one = num_parameters(replace(architecture, model=replace(model, intermediate_size=1)))
    a_width = 3 * model.hidden_size * model.num_hidden_layers
    width = max(1, 1 + round((wanted - of_one) / a_width))
    found = replace(model, intermediate_size=width)
    count = num_parameters(replace(architecture, model=found))
    if abs(count - wanted) > NEAR * wanted:
        raise ConfigError(
            "model.match_params",
            wanted,
            f"cannot be met within 0.1 %: the nearest MLP has a width of {width} and gives "
            f"{count:,} parameters",
        )
    return found
