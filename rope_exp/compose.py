"""The border to Hydra: its mapping becomes a RunConfig, its errors become sentences. DictConfig ends here."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rope_exp.config import RunConfig
from rope_exp.schema import ConfigError, known_keys, unknown_key

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def to_run_config(values: DictConfig) -> RunConfig:
    """Convert Hydra's composed config, once.

    Raises:
        ConfigError: see RunConfig.from_dict; also an interpolation that reads the environment, which would put what it
            reads into saved files.
    """
    _refuse_environment(OmegaConf.to_container(values, resolve=False), "")
    try:
        plain = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise explain(error) from error
    assert isinstance(plain, dict)
    return RunConfig.from_dict({str(key): value for key, value in plain.items()})


def run_config(overrides: Sequence[str]) -> RunConfig:
    """Compose `configs/` with command-line overrides, for scripts and tests.

    Raises:
        ConfigError: one sentence, whatever is wrong with them.
    """
    try:
        with initialize_config_dir(version_base=None, config_dir=str(CONFIGS)):
            return to_run_config(compose("config", overrides=list(overrides)))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise explain(error) from error


def explain(error: Exception) -> ConfigError:
    """Hydra's error as one sentence."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        if group.startswith("hydra/"):
            return ConfigError(group, choice, "this plugin of Hydra is not installed (see README, SLURM)")
        choices = error.options or sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
        return ConfigError(group, choice, f"there is no such choice; choose one of {', '.join(sorted(choices))}")
    if isinstance(error, YAMLError):
        return ConfigError("configs", ..., f"a file there is no YAML: {text}")
    if isinstance(error, OverrideParseException):
        return ConfigError("override", error.override, "is not of the form key=value")
    if match := re.search(r"Could not override '([^']*)'", text):
        return unknown_key(match[1], known_keys(RunConfig))
    if match := re.search(r"Could not append to config. An item is already at '([^']*)'", text):
        return ConfigError(match[1], ..., "is a key already; leave out the +")
    return ConfigError(str(getattr(error, "full_key", None) or "config"), ..., text)


def _refuse_environment(node: object, key: str) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            _refuse_environment(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            _refuse_environment(value, key)
    elif isinstance(node, str) and re.search(r"\$\{\s*(oc\.env|hydra)\b", node):
        raise ConfigError(key, node, "may not read the environment: configs are saved with every run")
