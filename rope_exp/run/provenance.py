"""What a measurement was made on: device, versions, commit."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rope_exp.system.machine import cpu_name, num_cores

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


def machine_facts(device: str) -> dict[str, Any]:
    """What anything that is measured here was measured on."""
    import torch

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "git": _git(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": num_cores(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The commit of this source tree and whether it was changed; None outside a checkout."""

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(Path(__file__).parent), *words],
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, status = ask("rev-parse", "HEAD"), ask("status", "--porcelain")
    return {"commit": commit, "dirty": bool(status)} if commit else None
