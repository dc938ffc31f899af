"""Initial weights of a run: drawn from its seed, or copied from a finished run.

A parameter that the finished run lacks (a table of positions, learned frequencies, query and key
norms) keeps its usual initialisation. A parameter that this run lacks is an error, unless it
encodes positions alone: continuing as another variant means leaving those out.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from rope_exp.config.run import RunConfig
from rope_exp.config.variants import PeConfig
from rope_exp.evaluation.load import load_run
from rope_exp.model.decoder import (
    FREQUENCIES,
    POSITIONS,
    Decoder,
    llama_weights,
    weights,
    weights_sha256,
)
from rope_exp.model.own import OWN
from rope_exp.run.folder import list_steps
from rope_exp.run.origin import find_origin
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError


def begin(
    decoder: Decoder, config: RunConfig, folder: Path, tokenizer_json: str, *, is_main: bool
) -> dict[str, str]:
    """Set the initial weights of a decoder that was drawn from its seed.

    Args:
        folder: the run's folder.
        tokenizer_json: the tokenizer of the run's data.
        is_main: whether to log which weights were copied.
    Returns:
        init_sha256 of all weights, and shared_init_sha256 of those that every variant has. {} if
        the run resumes from its own checkpoints, which hold both: its origin may be gone.
    Raises:
        ConfigError: the weights or the tokenizer of run.init_from do not fit.
        RecordError, CheckpointError: the folder of run.init_from is damaged.
    """
    if config.init_weights is None:
        return _hashes(decoder)
    if list_steps(folder / "checkpoints"):
        return {}

    path = str(config.run.init_from)
    origin = find_origin(path)
    if origin.weights_sha256 != config.init_weights:
        raise ConfigError(
            "run.init_from", path, f"has other weights than init_weights={config.init_weights:.12}"
        )
    theirs, tokenizer = load_run(origin.folder, origin.step)
    if tokenizer.to_str() != Tokenizer.from_str(tokenizer_json).to_str():
        raise ConfigError("run.init_from", path, "has another tokenizer: its tokens mean others")

    found = named_here(weights(theirs), origin.config.pe, config.pe)
    left, fresh = take_over(weights(decoder), found, path)
    if is_main:
        left_out = f"; left out: {', '.join(left)}" if left else ""
        begun = f"; begun anew: {', '.join(fresh)}" if fresh else ""
        log(f"{config.name}: begins with step {origin.step} of {path}{left_out}{begun}")
    return _hashes(decoder)


def named_here(
    tensors: Mapping[str, Tensor], theirs: PeConfig, ours: PeConfig
) -> dict[str, Tensor]:
    """Return a run's tensors under the names that another variant gives them.

    Learned frequencies belong to a pair of sites, and the first pair that learns takes the first
    name.
    """
    found = dict(tensors)
    pairs = dict(zip(theirs.trained_pairs, theirs.learned_names, strict=True))
    of_pairs = {pair: found.pop(FREQUENCIES + name) for pair, name in pairs.items()}

    here = dict(zip(ours.trained_pairs, ours.learned_names, strict=True))
    for pair, tensor in of_pairs.items():
        found[FREQUENCIES + here.get(pair, f"{pairs[pair]} of {pair}")] = tensor
    return found


@torch.no_grad()
def take_over(
    own: Mapping[str, Tensor], found: Mapping[str, Tensor], path: str
) -> tuple[list[str], list[str]]:
    """Copy the tensors that were found into the parameters of the same names.

    Args:
        path: the run in which they were found.
    Returns:
        The names of tensors that were left out, and of parameters that found no tensor.
    Raises:
        ConfigError: a parameter has another shape, or is missing here though it does not encode
            positions. The first such is named; nothing was copied.
    """
    for name in sorted(found):
        theirs = list(found[name].shape)
        encodes_positions = name.startswith(POSITIONS) or OWN in name
        if name not in own and not encodes_positions:
            allowed = f"has {name} of {theirs}, for which there is no place here"
            raise ConfigError("run.init_from", path, allowed)
        if name in own and own[name].shape != found[name].shape:
            allowed = f"has {name} of {theirs}, and here it is of {list(own[name].shape)}"
            raise ConfigError("run.init_from", path, allowed)

    for name in found.keys() & own.keys():
        own[name].copy_(found[name])
    return sorted(found.keys() - own.keys()), sorted(own.keys() - found.keys())


def _hashes(decoder: Decoder) -> dict[str, str]:
    return {
        "init_sha256": weights_sha256(weights(decoder)),
        "shared_init_sha256": weights_sha256(llama_weights(decoder)),
    }
