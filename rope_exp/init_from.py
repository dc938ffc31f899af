"""Initial weights from a finished run, the origin, which run.init_from names.

Runs are told apart by their initial weights, not by a path: `init_weights` is the SHA-256 of the
weights file in the origin's last checkpoint. A parameter that the origin lacks keeps its usual
initialisation. One that this run lacks is an error, unless it encodes positions alone.
"""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from rope_exp.config import DEFAULT_OUTPUT, RunConfig
from rope_exp.decoder import CUSTOM, FREQUENCIES, POSITIONS, Decoder, weights
from rope_exp.errors import ConfigError, RunFolderError
from rope_exp.files import read_json
from rope_exp.folder import (
    CONFIG,
    MANIFEST,
    MODEL,
    Manifest,
    checked,
    list_steps,
    read_config,
    read_result,
    step_folder,
)
from rope_exp.load import has_trusted_code, load_run


class Origin(NamedTuple):
    """A finished run, its last step, and the SHA-256 of the weights in that checkpoint."""

    folder: Path
    config: RunConfig
    step: int
    weights_sha256: str


def with_weights(config: RunConfig) -> RunConfig:
    """Return a config with the hash of its origin's weights."""
    try:
        origin = find_origin(config)
        _check_trust(config, origin)
    except (ConfigError, RunFolderError):
        # A run with checkpoints of its own resumes from these, and its origin may be gone.
        is_begun = list_steps(config.folder / "checkpoints")
        before = read_config(config.folder) if is_begun else None
        if before is None or before.run.init_from != config.run.init_from:
            raise
        return replace(config, init_weights=before.init_weights)

    # These determine the meaning of weights, and do not show in their shapes.
    keys = ["model.num_attention_heads", "model.num_key_value_heads", "model.tie_word_embeddings"]
    if config.pe.learned.keys() & origin.config.pe.learned.keys():
        keys.append("pe.trainable")
    for key in keys:
        value = attrgetter(key)(config)
        expected = attrgetter(key)(origin.config)
        if value != expected:
            reason = f"must be {expected}, as in run.init_from={origin.folder}"
            raise ConfigError(key, value, reason)
    return replace(config, init_weights=origin.weights_sha256)


def find_origin(config: RunConfig) -> Origin:
    """Find the finished run that run.init_from names; its weights must be init_weights if set."""
    folder = Path(str(config.run.init_from)).expanduser()
    if not (folder / CONFIG).exists():
        raise _unfit(config, "there is no run in this folder")
    result = read_result(folder)
    if result is None or result["status"] != "finished":
        raise _unfit(config, "this run is not finished")
    path = step_folder(folder / "checkpoints", result["steps"]) / MANIFEST
    if not path.exists():
        raise _unfit(config, f"the checkpoint of its last step, {result['steps']}, is gone")
    sha256 = checked(path, read_json(path), Manifest)[MODEL]["sha256"]
    if config.init_weights not in (None, sha256):
        raise _unfit(config, f"has other weights than init_weights={config.init_weights:.12}")
    return Origin(folder, read_config(folder), result["steps"], sha256)


def _check_trust(config: RunConfig, origin: Origin) -> None:
    """Refuse an origin whose code would be executed and is not trusted.

    It is trusted if it is this run's own, or lies below the user's results, or by run.trust_code.
    """
    pe = origin.config.pe
    is_trusted = config.run.trust_code or has_trusted_code(origin.folder, origin.config)
    if not (is_trusted or pe.source == config.pe.source):
        reason = f"brings code of its own (pe.code={pe.code}), which would be executed, and does "
        reason += f"not lie below {DEFAULT_OUTPUT}; read pe.source in its {CONFIG}, and "
        raise _unfit(config, f"{reason}allow it by run.trust_code=true")


def origin_metadata(config: RunConfig) -> dict[str, Any]:
    """Return the entry of env.json about a run's origin."""
    origin = find_origin(config)
    return {
        "pe": origin.config.pe.label,
        "seed": origin.config.seed,
        "step": origin.step,
        "config_sha256": origin.config.config_sha256,
        "weights_sha256": origin.weights_sha256,
    }


@torch.no_grad()
def load_origin_weights(decoder: Decoder, config: RunConfig, tokenizer_json: str) -> str:
    """Copy the weights of run.init_from into a decoder.

    Args:
        decoder: with its usual initial weights. A parameter that the origin lacks keeps these.
        config: of the decoder's run.
        tokenizer_json: the run's tokenizer, which must be the origin's.
    Returns:
        A line that says which parameters were left out, and which begin anew.
    Raises:
        ConfigError: the origin is gone, or its tokenizer or weights do not fit.
    """
    origin = find_origin(config)
    _check_trust(config, origin)
    source, tokenizer = load_run(origin.folder, origin.step, trust_code=True)
    if tokenizer.to_str() != Tokenizer.from_str(tokenizer_json).to_str():
        raise _unfit(config, "has another tokenizer: its token ids mean other tokens")

    initial = weights(decoder)
    # A pair's frequencies may have another name in this run (`PeConfig.learned`): match them by
    # pair. A pair that learns nothing here gets a name that no parameter has, so it is left out.
    new_names = {}
    for pair, name in origin.config.pe.learned.items():
        new_name = config.pe.learned.get(pair, f"{name} of {pair}")
        new_names[FREQUENCIES + name] = FREQUENCIES + new_name
    loaded = {}
    for name, tensor in weights(source).items():
        loaded[new_names.get(name, name)] = tensor
    for name, tensor in sorted(loaded.items()):
        if name in initial:
            fits = initial[name].shape == tensor.shape
        else:
            # A parameter that encodes positions alone may be left out.
            fits = name.startswith(POSITIONS) or CUSTOM in name
        if not fits:
            raise _unfit(config, f"has {name} of {list(tensor.shape)}, which does not fit here")
    for name in loaded.keys() & initial.keys():
        initial[name].copy_(loaded[name])
    start = f"begins with step {origin.step} of {origin.folder}"
    left_out = ", ".join(sorted(loaded.keys() - initial.keys())) or "nothing"
    drawn = ", ".join(sorted(initial.keys() - loaded.keys())) or "nothing"
    return f"{start}; left out: {left_out}; begun anew: {drawn}"


def _unfit(config: RunConfig, reason: str) -> ConfigError:
    return ConfigError("run.init_from", config.run.init_from, reason)
