"""Initial weights of a run: drawn from its seed, or those of a finished run (run.init_from).

Runs are told apart by their initial weights, not by a path: `init_weights` is the SHA-256 of the
weights file in the other run's last checkpoint. A parameter that the other run lacks keeps its
usual initialisation. One that this run lacks is an error, unless it encodes positions alone.
"""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from rope_exp import folder as files
from rope_exp.config import RunConfig
from rope_exp.decoder import FREQUENCIES, OWN, POSITIONS, Decoder, llama_weights, weights
from rope_exp.decoder import weights_sha256 as sha256
from rope_exp.errors import ConfigError, RecordError, log
from rope_exp.files import read_json
from rope_exp.identity import chosen


class Origin(NamedTuple):
    """A finished run, its last step, and the SHA-256 of the weights in that checkpoint."""

    folder: Path
    config: RunConfig
    step: int
    weights_sha256: str

    def facts(self) -> files.OriginFacts:
        """Return what env.json says of it."""
        return {
            "pe": self.config.pe.label,
            "seed": self.config.seed,
            "step": self.step,
            "config_sha256": self.config.config_sha256,
            "weights_sha256": self.weights_sha256,
        }


def with_origin(config: RunConfig) -> RunConfig:
    """Return a config with the hash of the weights of run.init_from, if it names a run."""
    if config.run.init_from is None:
        return config
    try:
        origin = find_origin(config)
    except (ConfigError, RecordError):
        # A run with checkpoints of its own resumes from these, and its origin may be gone.
        is_begun = not config.run.fresh and files.list_steps(config.folder / "checkpoints")
        before = files.read_config(config.folder) if is_begun else None
        if before is None or before.run.init_from != config.run.init_from:
            raise
        return replace(config, init_weights=before.init_weights)

    # These determine the meaning of weights, and do not show in their shapes.
    heads = ["num_attention_heads", "num_key_value_heads", "tie_word_embeddings"]
    both_learn = config.pe.learned.keys() & origin.config.pe.learned.keys()
    for key in [f"model.{key}" for key in heads] + ["pe.trainable"] * bool(both_learn):
        own, other = map(attrgetter(key), (config, origin.config))
        if own != other:
            raise ConfigError(key, own, f"must be {other}, as in run.init_from={origin.folder}")
    return replace(config, init_weights=origin.weights_sha256)


def find_origin(config: RunConfig) -> Origin:
    """Find the finished run that run.init_from names; its weights must be init_weights if set."""
    folder = Path(str(config.run.init_from)).expanduser()
    if not (folder / files.CONFIG).exists():
        raise _unfit(config, "there is no run in this folder")
    result = files.read_result(folder)
    if result is None or result["status"] != "finished":
        raise _unfit(config, "this run is not finished")
    checkpoint = files.step_folder(folder / "checkpoints", result["steps"])
    if not checkpoint.exists():
        raise _unfit(config, f"the checkpoint of its last step, {result['steps']}, is gone")
    path = checkpoint / files.MANIFEST
    found = files.checked(path, read_json(path), files.Manifest)[files.MODEL]["sha256"]
    if config.init_weights not in (None, found):
        raise _unfit(config, f"has other weights than init_weights={config.init_weights:.12}")
    return Origin(folder, files.read_config(folder), result["steps"], found)


@torch.no_grad()
def begin(
    decoder: Decoder, config: RunConfig, folder: Path, tokenizer_json: str, *, is_main: bool
) -> dict[str, str]:
    """Set the initial weights of a decoder that was drawn from its seed; return their hashes.

    {} if the run resumes from its own checkpoints.
    """
    own = weights(decoder)
    if config.init_weights is not None:
        if files.list_steps(folder / "checkpoints"):
            return {}
        origin = find_origin(config)
        load_run = chosen("load", "run", "run.init_from").load_run
        theirs, tokenizer = load_run(origin.folder, origin.step)
        if tokenizer.to_str() != Tokenizer.from_str(tokenizer_json).to_str():
            raise _unfit(config, "has another tokenizer: its tokens mean others")
        # Learned frequencies are of a pair of sites; the first pair that learns has the first name.
        here = _learned(config)
        names = {n: here.get(p, f"{n} of {p}") for p, n in _learned(origin.config).items()}
        given = {names.get(name, name): tensor for name, tensor in weights(theirs).items()}
        for name, tensor in sorted(given.items()):
            is_position = name.startswith(POSITIONS) or OWN in name
            if own[name].shape != tensor.shape if name in own else not is_position:
                raise _unfit(config, f"has {name} of {list(tensor.shape)}, which does not fit here")
        for name in given.keys() & own.keys():
            own[name].copy_(given[name])
        if is_main:
            left_out = ", ".join(sorted(given.keys() - own.keys())) or "nothing"
            drawn = ", ".join(sorted(own.keys() - given.keys())) or "nothing"
            log(
                f"{config.name}: begins with step {origin.step} of {origin.folder}; "
                f"left out: {left_out}; begun anew: {drawn}"
            )
    return {"init_sha256": sha256(own), "shared_init_sha256": sha256(llama_weights(decoder))}


def _learned(config: RunConfig) -> dict[str, str]:
    """Return the names of learned frequencies by their pair of sites."""
    return {pair: FREQUENCIES + name for pair, name in config.pe.learned.items()}


def _unfit(config: RunConfig, reason: str) -> ConfigError:
    return ConfigError("run.init_from", config.run.init_from, reason)
