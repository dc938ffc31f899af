"""Checkpoints, which are saved atomically and verified when loaded.

checkpoints/step_XXXXXXXX/ holds model.safetensors, optimizer.safetensors, state.json and
manifest.json, which has the SHA-256 of the other three. A folder is complete when it gets its name,
and loses it before it is deleted. So after any interruption of a save, the newest checkpoint is the
old or the new one, and it is complete. Pickle is never read or written.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rope_exp.errors import CheckpointError, RunFolderError, first_line, log
from rope_exp.files import (
    new_folder,
    open_file,
    parse_json,
    read_bytes,
    sync_folder,
    system_error,
    write_json,
)
from rope_exp.folder import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    Manifest,
    checked,
    list_steps,
    step_folder,
)

_FILES = (MODEL, OPTIMIZER, STATE)


class Checkpoint(NamedTuple):
    """The contents of a checkpoint."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save(
    folder: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Save a checkpoint, whole or not at all.

    Args:
        folder: the run's `checkpoints/`.
        step: the last step that the weights have had.
        model: the weights by name, on any device.
        optimizer: the optimizer's tensors by name (`optimizer.optimizer_tensors`).
        state: plain values for state.json, to which the step is added.
    Raises:
        DiskError: the disk is full. As after any other OSError, older checkpoints are kept.
    """
    final = step_folder(folder, step)
    needed_bytes = sum(tensor.nbytes for tensor in (*model.values(), *optimizer.values()))
    with new_folder(final, needed_bytes, f"the checkpoint of step {step}") as temporary:
        write_json(temporary / STATE, {"step": step, **state})
        _save_tensors(temporary / MODEL, model)
        _save_tensors(temporary / OPTIMIZER, optimizer)
        manifest = {name: {"sha256": _sha256(temporary / name)} for name in _FILES}
        write_json(temporary / MANIFEST, manifest)

        # An existing one did not verify: the run resumed from an older one.
        if final.exists():
            _drop(final)


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # Copy each tensor: safetensors refuses tensors that share memory, as a tied head does.
    copies = {name: x.contiguous().to("cpu", copy=True) for name, x in tensors.items()}
    try:
        save_file(copies, path)
    except SafetensorError as error:
        raise system_error(error) from error
    # safetensors creates files that only their owner can read.
    shutil.copymode(path.with_name(STATE), path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def prune(folder: Path, keep: int, newest: int) -> None:
    """Delete all checkpoints but the last ones up to step `newest`.

    Args:
        folder: the run's `checkpoints/`.
        keep: the number of checkpoints to keep.
        newest: the step just saved. Checkpoints of later steps did not verify when the run resumed.
    """
    steps = list_steps(folder)
    kept = [step for step in steps if step <= newest][-keep:]
    for step in steps:
        if step not in kept:
            _drop(step_folder(folder, step))


def clear_leftovers(folder: Path) -> None:
    """Delete the leftovers of interrupted saves and deletions."""
    for leftover in [*folder.glob(".saving-*"), *folder.glob(".dropped-*")]:
        shutil.rmtree(leftover)


def _drop(path: Path) -> None:
    """Delete a checkpoint; at any moment, its folder is complete or does not exist."""
    aside = path.with_name(f".dropped-{path.name}")
    path.rename(aside)
    # Without this, a power cut may undo the rename and keep the deletions.
    sync_folder(path.parent)
    shutil.rmtree(aside)


def load_newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that verifies; None if there is none at all.

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
            f"no checkpoint under {folder} verifies ({broken[0]}); restore one, or "
            "move the run's folder away to begin anew"
        )
    return None


def load(folder: Path, step: int) -> Checkpoint:
    """Return the checkpoint of `step`, with every byte verified.

    Raises:
        CheckpointError: it is missing or damaged.
        OSError: the disk failed, which says nothing about the checkpoint.
    """
    path = step_folder(folder, step)
    try:
        manifest = parse_json(path / MANIFEST, read_bytes(path / MANIFEST))
        state = parse_json(path / STATE, read_bytes(path / STATE))
        manifest = checked(path / MANIFEST, manifest, Manifest)
        for name in _FILES:
            if _sha256(path / name) != manifest[name]["sha256"]:
                raise CheckpointError(f"{path / name} does not verify against its manifest")
        model = _load_tensors(path / MODEL)
        optimizer = _load_tensors(path / OPTIMIZER)
        return Checkpoint(step, model, optimizer, state)
    except (RunFolderError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise CheckpointError(str(error)) from error


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}") from error
    except RuntimeError as error:
        # torch raises it for lack of memory, and for a file that has disappeared.
        if path.exists():
            raise
        raise CheckpointError(f"{path} is gone") from error


def _sha256(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_weights(what: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a checkpoint's weights into a model.

    Args:
        what: the checkpoint's name for an error, such as "the checkpoint of step 8 in FOLDER".
        model: the model, whose parameters take the values.
        tensors: the weights; their names and shapes must be exactly the model's.
    Raises:
        CheckpointError: they are not.
    """
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{what} is of another model: {first_line(error)}") from error
