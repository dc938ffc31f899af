"""The run folder: config.yaml, env.json, result.json (metrics.jsonl: rope_exp.run.metrics). What a run says of itself.

Every file appears whole by an atomic rename. result.json comes last: its presence means that the run is done. What is
read back is checked, type by type: a folder that was damaged or edited is refused by the file's name. No torch.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import Count, Natural, NonNegative, OrderSha256, Seed, Sha256, check
from rope_exp.system.errors import ConfigError, RecordError, first_line
from rope_exp.system.files import (
    read_json,
    read_text,
    write_atomically,
)

CONFIG, ENV, RESULT = "config.yaml", "env.json", "result.json"
LOCK = ".lock"

# result.json, as DESIGN, section 4, has it.
RESULT_FIELDS: dict[str, Any] = {
    "status": Literal["finished", "diverged"],
    "pe": str,
    "rotate": tuple[str, ...],
    "seed": Seed,
    "params": Count,
    "tokens": Natural,
    "steps": Natural,
    "val/loss": float | None,
    "train/loss_last": float | None,
    "init_sha256": Sha256,
    "data_sha256": Sha256,
    "order_sha256": OrderSha256,
    "config_sha256": Sha256,
    "group_sha256": Sha256,
    "tokens_per_s": NonNegative | None,
    "mfu": NonNegative | None,
    "wall_s": NonNegative,
}
# Of env.json, what is read back.
ENV_FIELDS: dict[str, Any] = {"marks": tuple[str, ...], "started": tuple[str, ...]}


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.yaml, the fully resolved config."""
    write_atomically(folder / CONFIG, yaml.safe_dump(config.to_dict(), sort_keys=False))


def read_config(folder: Path) -> RunConfig:
    """Read config.yaml.

    Raises:
        RecordError: it is missing, or is not a config as this version writes it.
    """
    path = folder / CONFIG
    try:
        text = read_text(path)
        # We write none; and a few hundred bytes of aliases to aliases would unfold to more than a machine holds.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise RecordError(f"{path} cannot be read: it holds aliases")
        return RunConfig.from_dict(yaml.safe_load(text))
    except ConfigError as error:
        raise RecordError(f"{path} is no config of this version: {error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path} cannot be read: {first_line(error)}") from error


def check_fields(path: Path, values: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Refuse what `path` holds unless each of `fields` is there and of its type; others are left alone.

    Raises:
        RecordError: naming the file, the field, its value and what is allowed.
    """
    try:
        check(values, fields)
    except ConfigError as error:
        raise RecordError(f"{path} was damaged or edited: {error}") from error


def read_result(folder: Path) -> dict[str, Any] | None:
    """result.json, or None while the run is not done.

    Raises:
        RecordError: it is not what a run of this version writes.
    """
    path = folder / RESULT
    if not os.path.lexists(path):
        return None
    result = read_json(path)
    finished, diverged = {"val/loss": float}, {"val/loss": type(None), "diverged_step": Count}
    ended: dict[str, Any] = finished if result.get("status") == "finished" else diverged
    check_fields(path, result, RESULT_FIELDS | ended)
    return result


def read_env(folder: Path) -> dict[str, Any]:
    """env.json, or {} before the run's first start.

    Raises:
        RecordError: it is not what a run of this version writes.
    """
    path = folder / ENV
    if not os.path.lexists(path):
        return {}
    env = read_json(path)
    check_fields(path, env, ENV_FIELDS)
    return env


def describe(result: Mapping[str, Any]) -> str:
    """A result in a few words."""
    if result["status"] == "diverged":
        return f"diverged: after {result['steps']} steps a loss or a gradient was not finite"
    rate = f", {result['tokens_per_s']:,.0f} tokens/s" if result["tokens_per_s"] else ""
    return f"finished, val/loss {result['val/loss']:.4f}{rate}, {result['wall_s']:.0f} s"
