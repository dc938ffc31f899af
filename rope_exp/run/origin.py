"""A run's origin: the finished run that its initial weights come from (run.init_from).

Runs are distinguished by their initial weights, not by the path of the origin: `init_weights` is
the SHA-256 of the weights file in the origin's last checkpoint, taken from its manifest. So runs
from one origin are one group, and runs from different origins, or from none, are not.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rope_exp.config.run import RunConfig
from rope_exp.run.folder import (
    CONFIG,
    MANIFEST,
    MODEL,
    Manifest,
    list_steps,
    read_as,
    read_config,
    read_result,
    step_folder,
)
from rope_exp.system.errors import ConfigError, RecordError

# Keys of the model that determine the meaning of its features, but do not show in weight shapes.
_SAME = ("num_attention_heads", "num_key_value_heads", "tie_word_embeddings")


@dataclass(frozen=True)
class Origin:
    """A finished run.

    Attributes:
        step: of its last checkpoint.
        weights_sha256: of the weights in that checkpoint, by its manifest.
    """

    folder: Path
    config: RunConfig
    step: int
    weights_sha256: str

    @property
    def facts(self) -> dict[str, Any]:
        """The `OriginFacts` for the record of a run that starts from it."""
        return {
            "pe": self.config.pe.label,
            "seed": self.config.seed,
            "step": self.step,
            "config_sha256": self.config.config_sha256,
            "weights_sha256": self.weights_sha256,
        }


def with_origin(config: RunConfig) -> RunConfig:
    """Return a config with the hash of the weights of run.init_from, if it names a run.

    A run with checkpoints of its own resumes from these, and its origin may be gone.

    Raises:
        ConfigError: there is no such run, it has not finished, or its weights have another meaning
            in this model.
        RecordError: one of its files is damaged.
    """
    path = config.run.init_from
    if path is None:
        if config.init_weights is not None:
            raise ConfigError(
                "init_weights", config.init_weights, "is given by run.init_from; leave null"
            )
        return config

    try:
        origin = find_origin(path)
    except (ConfigError, RecordError):
        begun = _begun_with(config)
        if begun is None:
            raise
        return replace(config, init_weights=begun)

    if config.init_weights not in (None, origin.weights_sha256):
        raise ConfigError(
            "init_weights",
            config.init_weights,
            f"is not what run.init_from={path} has: {origin.weights_sha256}",
        )
    _check_meaning(config, origin)
    return replace(config, init_weights=origin.weights_sha256)


def find_origin(path: str) -> Origin:
    """Find a finished run and the hash of its last weights.

    Raises:
        ConfigError: there is no such run, or it has not finished, or its weights are gone.
        RecordError: one of its files is damaged.
    """

    def unusable(reason: str) -> ConfigError:
        return ConfigError("run.init_from", path, reason)

    folder = Path(path).expanduser()
    if not (folder / CONFIG).exists():
        raise unusable("there is no run in this folder")
    config = read_config(folder)
    result = read_result(folder)
    if result is None:
        raise unusable("this run is not done yet; begin with a finished one")
    if result["status"] != "finished":
        raise unusable(f"this run has {result['status']}; begin with a finished one")

    step = result["steps"]
    checkpoints = folder / "checkpoints"
    if step not in list_steps(checkpoints):
        raise unusable(f"the checkpoint of its last step, {step}, is gone")
    manifest = read_as(step_folder(checkpoints, step) / MANIFEST, Manifest)
    return Origin(folder, config, step, manifest[MODEL]["sha256"])


def _begun_with(config: RunConfig) -> str | None:
    """Return the hash of the initial weights of a run that resumes from its own checkpoints."""
    if config.run.fresh or not list_steps(config.folder / "checkpoints"):
        return None
    before = read_config(config.folder)
    return before.init_weights if before.run.init_from == config.run.init_from else None


def _check_meaning(config: RunConfig, origin: Origin) -> None:
    """Refuse weights that may fit by shape but have another meaning in this model."""
    theirs = origin.config
    whose = f"run.init_from={config.run.init_from}"
    for key in _SAME:
        own = getattr(config.model, key)
        other = getattr(theirs.model, key)
        if own != other:
            raise ConfigError(f"model.{key}", own, f"must be that of {whose}: {other}")

    both_learn = set(config.pe.trained_pairs) & set(theirs.pe.trained_pairs)
    if both_learn and config.pe.trainable != theirs.pe.trainable:
        raise ConfigError(
            "pe.trainable",
            config.pe.trainable,
            f"learns another number than {whose} did, whose pe.trainable is {theirs.pe.trainable}",
        )
