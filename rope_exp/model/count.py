"""Counting by building: the real decoder without numbers, on torch's meta device.

A tied head is counted once.
"""

import functools
from dataclasses import replace

import torch

from rope_exp.config.architecture import Architecture
from rope_exp.config.kinds import AttnConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.decoder import on_meta
from rope_exp.system.errors import ConfigError

# Of model.match_params: how far the nearest whole width of an MLP may leave it.
NEAR = 1e-3


def num_parameters(architecture: Architecture) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in on_meta(architecture).parameters())


def layer_weights(architecture: Architecture) -> int:
    """Return the number of weights of a layer that multiply a token: those of its matrices."""
    parameters = on_meta(architecture).model.layers[0].parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.ndim == 2)


@functools.cache
def kept(attn: AttnConfig, model: ModelConfig, pe: PeConfig) -> tuple[int, int]:
    """Return how many numbers a layer caches of each token, and how many however many there were.

    Where layers differ in what rotates, of the layer that keeps the most.
    """
    # What is added to the embeddings changes nothing here, and its range is checked by numbers.
    rotating = replace(pe, input="none", input_scale=None)
    decoder = on_meta(Architecture(model, rotating, vocab_size=1, attn=attn))
    cache = decoder.new_cache()
    with torch.no_grad(), torch.device("meta"):
        decoder(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
    return (
        max(sum(row.numel() for row in layer.rows.values()) for layer in cache.layers),
        max(sum(state.numel() for state in layer.states.values()) for layer in cache.layers),
    )


def matched(architecture: Architecture) -> ModelConfig:
    """Return the model with the width of its MLP at which it has `match_params` parameters.

    Raises:
        ConfigError: no width comes within a thousandth.
    """
    model = architecture.model
    wanted = model.match_params
    assert wanted is not None

    def count(width: int) -> int:
        sized = replace(model, intermediate_size=width)
        return num_parameters(replace(architecture, model=sized))

    # Parameters are a straight line over the width.
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
