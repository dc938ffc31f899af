"""model.match_params: the width of the MLP that gives a decoder a number of parameters."""

from dataclasses import replace

from rope_exp.config import RunConfig
from rope_exp.costs import num_parameters
from rope_exp.errors import ConfigError

# Largest relative deviation at the nearest whole width.
NEAR = 1e-3


def with_matched(config: RunConfig) -> RunConfig:
    """Return a config whose MLP has the width that model.match_params asks for."""
    model = config.model
    wanted = model.match_params
    assert wanted is not None
    vocab_size = config.known_vocab_size
    if config.pe.code is not None:
        # Counting would run its code.
        reason = "cannot be met with pe.code; set model.intermediate_size"
        raise ConfigError("model.match_params", wanted, reason)
    if vocab_size is None:
        reason = "needs a vocabulary whose size is known: a pretrained tokenizer's is not"
        raise ConfigError("model.match_params", wanted, reason)
    architecture = config.architecture(vocab_size)

    def count(width: int) -> int:
        sized = replace(model, intermediate_size=width)
        return num_parameters(replace(architecture, model=sized))

    # The number of parameters is linear in the width.
    narrowest = count(1)
    width = max(1, 1 + round((wanted - narrowest) / (count(2) - narrowest)))
    if abs(count(width) - wanted) > NEAR * wanted:
        reason = (
            f"cannot be met within 0.1 %: the nearest MLP has a width of {width} and gives "
            f"{count(width):,} parameters"
        )
        raise ConfigError("model.match_params", wanted, reason)
    return config.replace("model", intermediate_size=width)
