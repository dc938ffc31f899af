"""Checkpoints: saved whole or not at all, loaded verified or not at all.

checkpoints/step_XXXXXXXX/ holds model.safetensors, optimizer.safetensors, state.json and manifest.json (size and
SHA-256 of the other three). A save writes into a temporary folder, syncs every file and the folder, renames it, and
syncs the parent: whatever interrupts it, the newest complete checkpoint is the old or the new one. Pickle is never read
or written.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from rope_exp.record import RecordError, read_json, sync_folder, to_json, write_json

MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_TEMPORARY = ".saving-"


class CheckpointError(RuntimeError):
    """A checkpoint that does not verify; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """What a step left behind."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: Path, step: int, model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Save a checkpoint under `folder` (the run's `checkpoints/`), atomically.

    Raises:
        OSError: the disk is full or broken; the temporary folder is gone and older checkpoints stand.
    """
    final, temporary = folder / f"step_{step:08d}", folder / f"{_TEMPORARY}{step:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save_file(_own_storage(model), temporary / MODEL)
        save_file(_own_storage(optimizer), temporary / OPTIMIZER)
        write_json(temporary / STATE, {"step": step, **state})
        for name in (MODEL, OPTIMIZER):
            _sync_file(temporary / name)
        manifest = {name: _fingerprint(temporary / name) for name in (MODEL, OPTIMIZER, STATE)}
        write_json(temporary / MANIFEST, manifest)
        if final.exists():  # left by an earlier process that died between this rename and its next record
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def clear_leftovers(folder: Path) -> None:
    """Delete what interrupted saves left."""
    for leftover in folder.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover)


def prune(folder: Path, keep: int, newest: int) -> None:
    """Keep the `keep` checkpoints up to step `newest`, just saved.

    Later ones did not verify: the run went on from an older one.
    """
    steps = list_steps(folder)
    kept = [step for step in steps if step <= newest][-keep:]
    for step in steps:
        if step not in kept:
            shutil.rmtree(folder / f"step_{step:08d}")


def list_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints under `folder`, oldest first, verified or not."""
    names = [path.name for path in folder.glob("step_*") if path.is_dir() and not path.is_symlink()]
    return sorted(int(name[5:]) for name in names if name[5:].isdigit() and len(name) == 13)


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; broken ones are named in a warning and passed over.

    Returns:
        None if there is no checkpoint at all.
    Raises:
        CheckpointError: there are checkpoints, and none verifies.
    """
    broken = []
    for step in reversed(list_steps(folder)):
        try:
            return load(folder, step)
        except CheckpointError as error:
            broken.append(str(error))
            print(f"warning: {error}; trying the checkpoint before it", file=sys.stderr)
    if broken:
        raise CheckpointError(f"no checkpoint under {folder} verifies ({broken[0]}); restore one or use run.fresh=true")
    return None


def load(folder: Path, step: int) -> Checkpoint:
    """Load the checkpoint of `step`, every byte verified first.

    Raises:
        CheckpointError: a file is missing, or its size or SHA-256 is not the manifest's.
    """
    path = folder / f"step_{step:08d}"
    try:
        manifest = read_json(path / MANIFEST)
        if (path / MANIFEST).read_text(encoding="utf-8") != to_json(manifest):
            raise CheckpointError(f"{path / MANIFEST} is not as it was written")
        for name in (MODEL, OPTIMIZER, STATE):
            if not (path / name).is_file() or manifest.get(name) != _fingerprint(path / name):
                raise CheckpointError(f"{path / name} does not verify against its manifest")
        state = read_json(path / STATE)
    except RecordError as error:
        raise CheckpointError(str(error)) from error
    if state.get("step") != step:
        raise CheckpointError(f"{path / STATE} is of step {state.get('step')}, not {step}")
    return Checkpoint(step, load_file(path / MODEL), load_file(path / OPTIMIZER), state)


def _own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU and sharing no memory, which safetensors refuses; a tied head is copied."""
    owned: dict[int, Tensor] = {}
    result = {}
    for name, tensor in tensors.items():
        tensor = tensor.contiguous().cpu()
        result[name] = tensor.clone() if tensor.data_ptr() in owned else tensor
        owned[tensor.data_ptr()] = tensor
    return result


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
