"""Provenance of a measurement: device, versions, and the commit or release of this package."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rope_exp import __version__
from rope_exp.errors import ConfigError
from rope_exp.machine import ROOT, cpu_kind, cpu_name, num_cores, output_of

PACKAGES = (
    "torch",
    "accelerate",
    "datasets",
    "hydra-core",
    "numpy",
    "safetensors",
    "tokenizers",
    "transformers",
    "wandb",
)

# A run that resumes with another of these values notes it, as does a table of differing runs.
MARKED = ("world_size", "device", "cpu", "torch", "num_threads", "git")

# Paths of a checkout that can change a number, without the results that a run writes beside them.
CODE = ("rope_exp", "configs", "train.py", "scripts", "pyproject.toml", "constraints.txt")


def machine_facts(device: str) -> dict[str, Any]:
    """Return the hardware, versions and commit behind any measurement in this process."""
    import torch

    # Runs are also trained where git fails.
    git = None
    with suppress(ConfigError):
        git = git_state()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "cpu": cpu_kind(),
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "git": git,
        "rope_exp": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": num_cores(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def spelled(fact: Any) -> str:
    """Return a fact as readable text: a commit by its first digits, with + if code was changed."""
    if isinstance(fact, dict):
        return f"{fact.get('commit')!s:.10}{'+' if fact.get('dirty') else ''}"
    return str(fact)


def git_state() -> dict[str, Any] | None:
    """Return the commit of this checkout and whether its code was changed since.

    None if this package is no checkout of its own: an installed copy may lie within somebody
    else's repository.

    Raises:
        ConfigError: it is a checkout, and git cannot name its commit.
    """
    if not os.path.lexists(ROOT / ".git"):
        return None
    # Count new files, regardless of the user's own settings.
    status = _git("status", "--porcelain", "--untracked-files=normal", "--", *CODE)
    return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(status)}


def _git(*words: str) -> str:
    """Return git's output for this checkout, regardless of a repository in the environment.

    Raises:
        ConfigError: git fails; the message gives the reason.
    """
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("GIT_")}
    # Ignore repositories further up, too.
    environment["GIT_CEILING_DIRECTORIES"] = str(ROOT.parent)
    try:
        return output_of("git", "-C", str(ROOT), *words, env=environment)
    except ChildProcessError as error:
        why = str(error).removeprefix("git: ")
        raise ConfigError("git", ..., f"cannot say which commit {ROOT} is at: {why}") from None
