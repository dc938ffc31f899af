"""Checkpoints: saved whole or not at all, loaded verified or not at all.

checkpoints/step_XXXXXXXX/ holds model.safetensors, optimizer.safetensors, state.json and
manifest.json, which has the SHA-256 of the other three. A save writes into a temporary folder,
syncs every file and renames the folder; a checkpoint that is dropped is renamed before it is
deleted. So whatever interrupts a save, the newest checkpoint is the old or the new one, and it is
whole. Pickle is never read or written.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from rope_exp.run.folder import MANIFEST, MODEL, OPTIMIZER, STATE, Manifest, checked
from rope_exp.run.folder import list_steps as list_steps
from rope_exp.run.folder import step_folder as step_folder
from rope_exp.system.console import log
from rope_exp.system.errors import CheckpointError, RecordError, first_line
from rope_exp.system.files import (
    explaining_full_disk,
    parse_json,
    readable,
    sync_folder,
    to_json,
    write_atomically,
    write_json,
)

# The beginnings of the names of folders that an interruption may leave behind.
_SAVING = ".saving-"
_DROPPED = ".dropped-"


@dataclass(frozen=True)
class Checkpoint:
    """What a step left behind."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


# -- save ----------------------------------------------------------------------------------------


def save(
    folder: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Save a checkpoint below `folder` (the run's `checkpoints/`), whole or not at all.

    Raises:
        DiskError: the disk is full.
        OSError: the disk is broken. In both cases the temporary folder is gone, and older
            checkpoints stand.
    """
    final = step_folder(folder, step)
    temporary = folder / f"{_SAVING}{step:08d}"
    needed_bytes = sum(tensor.nbytes for tensor in (*model.values(), *optimizer.values()))
    with explaining_full_disk(folder, needed_bytes, f"the checkpoint of step {step}"):
        try:
            temporary.mkdir(parents=True)
            # The first save makes `folder` itself, whose name must last, too.
            sync_folder(folder.parent)

            manifest = {
                MODEL: _write(temporary / MODEL, _to_bytes(model)),
                OPTIMIZER: _write(temporary / OPTIMIZER, _to_bytes(optimizer)),
                STATE: _write(temporary / STATE, to_json({"step": step, **state}).encode()),
            }
            write_json(temporary / MANIFEST, manifest)

            # One that stands there already did not verify: the run went on from an older one.
            if final.exists():
                _drop(final)
            temporary.rename(final)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def prune(folder: Path, keep: int, newest: int) -> None:
    """Keep the last `keep` checkpoints up to step `newest`, which was just saved.

    Those after it did not verify: the run went on from an older one.
    """
    steps = list_steps(folder)
    kept = [step for step in steps if step <= newest][-keep:]
    for step in steps:
        if step not in kept:
            _drop(step_folder(folder, step))


def clear_leftovers(folder: Path) -> None:
    """Delete what interrupted saves and deletions left."""
    for start in (_SAVING, _DROPPED):
        for leftover in folder.glob(f"{start}*"):
            shutil.rmtree(leftover)


def _drop(path: Path) -> None:
    """Delete a checkpoint, which until then is whole or, under its name, not there at all."""
    aside = path.with_name(_DROPPED + path.name)
    path.rename(aside)
    shutil.rmtree(aside)


def _write(path: Path, content: bytes) -> dict[str, str]:
    """Write a file, and return its entry in the manifest."""
    write_atomically(path, content)
    return {"sha256": hashlib.sha256(content).hexdigest()}


def _to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    # Copied each: safetensors refuses tensors that share memory, as a tied head does.
    copies = {name: tensor.contiguous().to("cpu", copy=True) for name, tensor in tensors.items()}
    return to_bytes(copies)


# -- load ----------------------------------------------------------------------------------------


def load_newest(folder: Path) -> Checkpoint | None:
    """Load the newest checkpoint that verifies; broken ones are passed over with a warning.

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
            broken.append(error)
            log(f"warning: {error}; trying the checkpoint before it")
    if broken:
        raise CheckpointError(
            f"no checkpoint under {folder} verifies ({broken[0]}); restore one (a run can begin "
            "anew with run.fresh=true)"
        )
    return None


def load(folder: Path, step: int) -> Checkpoint:
    """Load the checkpoint of `step`, every byte verified first.

    Raises:
        CheckpointError: a file is missing, or is not what the manifest says.
        OSError: a file cannot be read now (permissions, too many open files).
    """
    path = step_folder(folder, step)
    try:
        content = (path / MANIFEST).read_bytes()
        manifest = checked(path / MANIFEST, parse_json(path / MANIFEST, content), Manifest)
        return Checkpoint(
            step,
            _load_tensors(path / MODEL, manifest),
            _load_tensors(path / OPTIMIZER, manifest),
            parse_json(path / STATE, _verified(path / STATE, manifest)),
        )
    except (RecordError, FileNotFoundError) as error:
        raise CheckpointError(str(error)) from error


def _load_tensors(path: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    content = _verified(path, manifest)
    with readable(path, SafetensorError, KeyError):
        return from_bytes(content)


def _verified(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """Return the content of a file, to the last byte as it was written."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest[path.name]["sha256"]:
        raise CheckpointError(f"{path} does not verify against its manifest")
    return content


def load_weights(
    what: str, model: nn.Module, tensors: Mapping[str, Tensor], *, assign: bool = False
) -> None:
    """Load a checkpoint's weights into a model; every one of both must fit.

    Args:
        assign: have the model take the tensors themselves, as one on the meta device can.
    Raises:
        CheckpointError: naming those that are missing, unknown or of another shape.
    """
    try:
        model.load_state_dict(tensors, assign=assign)
    except RuntimeError as error:
        raise CheckpointError(f"{what} is of another model: {first_line(error)}") from error
