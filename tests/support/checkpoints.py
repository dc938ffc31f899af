"""Small checkpoints, and manifests that match any files."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from rope_exp import checkpoint
from rope_exp.files import write_json

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


def tensors(seed: int) -> dict[str, Tensor]:
    """Return two small parameters."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(5, 3, generator=generator),
        "b": torch.randn(7, generator=generator),
    }


def save(folder: Path, step: int) -> None:
    """Save a small checkpoint, different at each step."""
    moments = {"a.weight.exp_avg": torch.ones(5, 3)}
    checkpoint.save(folder, step, tensors(step), moments, {"order_sha256": f"{step:x}"})


def seal(path: Path) -> None:
    """Write a manifest that matches the current files of a checkpoint."""
    manifest = {}
    for name in FILES[:3]:
        content = (path / name).read_bytes()
        manifest[name] = {"sha256": hashlib.sha256(content).hexdigest()}
    write_json(path / "manifest.json", manifest)
