"""Counts of parameters and cache elements, from the decoder built on torch's meta device.

A tied head is counted once.
"""

import functools
from dataclasses import replace

import torch

from rope_exp.config.architecture import Architecture
from rope_exp.config.kinds import AttnConfig
from rope_exp.config.run import RunConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.decoder import on_meta
from rope_exp.system.errors import ConfigError

# Largest relative deviation from model.match_params at the nearest whole width of the MLP.
NEAR = 1e-3


def num_parameters(architecture: Architecture) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in on_meta(architecture).parameters())


def layer_weights(architecture: Architecture) -> int:
    """Return the number of weights in a layer's matrices, each of which multiplies every token."""
    parameters = on_meta(architecture).model.layers[0].parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.ndim == 2)


@functools.cache
def kept(attn: AttnConfig, model: ModelConfig, pe: PeConfig) -> tuple[int, int] | tuple[None, None]:
    """Return a layer's cached elements per token, and the elements of its fixed-size states.

    If the rotating sites differ between layers, each count is the largest over layers. Unknown
    with a class of one's own: reading a record must not execute somebody's code.
    """
    if pe.code is not None:
        return None, None
    # Added positions change nothing here, and checking their range needs a tensor with data.
    rotating = replace(pe, input="none", input_scale=None)
    decoder = on_meta(Architecture(model, rotating, vocab_size=1, attn=attn))
    cache = decoder.new_cache()
    with torch.no_grad(), torch.device("meta"):
        decoder(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
    return (
        max(sum(row.numel() for row in layer.rows.values()) for layer in cache.layers),
        max(sum(state.numel() for state in layer.states.values()) for layer in cache.layers),
    )


def with_matched(config: RunConfig) -> RunConfig:
    """Return a config whose MLP has the width that model.match_params asks for, if it asks.

    Raises:
        ConfigError: the width cannot be told, or no width comes within a thousandth.
    """
    wanted = config.model.match_params
    if wanted is None:
        return config
    if config.pe.code is not None:
        # Counting would run its code.
        allowed = "cannot be met with pe.code; set model.intermediate_size"
        raise ConfigError("model.match_params", wanted, allowed)
    vocab_size = config.known_vocab_size
    if vocab_size is None:
        allowed = "needs a vocabulary whose size is known: a pretrained tokenizer's is not"
        raise ConfigError("model.match_params", wanted, allowed)
    return replace(config, model=matched(config.architecture(vocab_size)))


def matched(architecture: Architecture) -> ModelConfig:
    """Return the model with its MLP's width set so that it has `match_params` parameters.

    Raises:
        ConfigError: no width comes within a thousandth of that.
    """
    model = architecture.model
    wanted = model.match_params
    assert wanted is not None

    def count(width: int) -> int:
        sized = replace(model, intermediate_size=width)
        return num_parameters(replace(architecture, model=sized))

    # The number of parameters is linear in the width.
    of_one = count(1)
    width = max(1, 1 + round((wanted - of_one) / (count(2) - of_one)))
    if abs(count(width) - wanted) > NEAR * wanted:
        raise ConfigError(
            "model.match_params",
            wanted,
            f"cannot be met within 0.1 %: the nearest MLP has a width of {width} and gives "
            f"{count(width):,} parameters",
        )
    return replace(model, intermediate_size=width)
