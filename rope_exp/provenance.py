"""Provenance of a measurement: device, versions, and the commit or release of this package."""

import functools
import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rope_exp import __version__
from rope_exp.errors import ConfigError
from rope_exp.machine import ROOT, cpu_kind, cpu_name, num_cores, output_of

PACKAGES = (
    "torch", "accelerate", "datasets", "hydra-core", "numpy", "safetensors", "tokenizers",
    "transformers", "wandb",
)  # fmt: skip

# A run that resumes with another of these values notes it, as does a table of differing runs.
MARKED = ("world_size", "device", "cpu", "torch", "num_threads", "git")

# Paths of a checkout that can change a number.
CODE = ("rope_exp", "configs", "train.py", "scripts", "pyproject.toml", "constraints.txt")


def machine_facts(device: str) -> dict[str, Any]:
    """Return the hardware, versions and commit behind any measurement in this process."""
    import torch

    # Runs are also trained where git fails.
    git = None
    with suppress(ConfigError):
        git = git_state()
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
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
        "versions": versions,
    }


def spelled(fact: Any) -> str:
    """Return a fact as readable text: a commit by its first digits, with + if code was changed."""
    if isinstance(fact, dict):
        return f"{fact.get('commit')!s:.10}{'+' if fact.get('dirty') else ''}"
    return str(fact)


def git_state() -> dict[str, Any] | None:
    """Return the commit of this checkout and whether its code was changed since.

    None if this package is no checkout of its own: an installed copy may lie within somebody
    else's repository. A ConfigError says why git cannot name the commit of a checkout.
    """
    if not os.path.lexists(ROOT / ".git"):
        return None
    # Regardless of a repository in the environment, and of others further up.
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(ROOT.parent)
    git = functools.partial(output_of, "git", "-C", str(ROOT), env=environment)
    try:
        # Count new files, regardless of the user's own settings.
        status = git("status", "--porcelain", "--untracked-files=normal", "--", *CODE)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(status)}
    except ChildProcessError as error:
        why = str(error).removeprefix("git: ")
        raise ConfigError("git", ..., f"cannot say which commit {ROOT} is at: {why}") from None
