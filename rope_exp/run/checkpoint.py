"""Checkpoints: saved whole or not at all, loaded verified or not at all.

checkpoints/step_XXXXXXXX/ holds model.safetensors, optimizer.safetensors, state.json and
manifest.json (size and SHA-256 of the other three). A save writes into a temporary folder, syncs
every file and the folder, renames it, and syncs the parent; a checkpoint that is dropped is
renamed before it is deleted. So whatever interrupts a save, the newest checkpoint is the old or
the new one, and it is whole. Pickle is never read or written.
"""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rope_exp.run.folder import MANIFEST, MODEL
from rope_exp.run.folder import list_steps as list_steps
from rope_exp.run.folder import step_folder as step_folder
from rope_exp.system.console import log
from rope_exp.system.errors import CheckpointError, RecordError
from rope_exp.system.files import (
    explaining_full_disk,
    open_regular,
    read_json,
    read_text,
    readable,
    sync_folder,
    to_json,
    write_json,
)

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"

# The beginnings of the names of folders that an interruption may leave behind.
_SAVING = ".saving-"
_DROPPED = ".dropped-"

# Errors that say that a file cannot be read now, and not that it is damaged.
_MOMENTARY = (
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
)


@dataclass(frozen=True)
class Checkpoint:
    """What a step left behind."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


# -- folders -------------------------------------------------------------------------------------


def clear_leftovers(folder: Path) -> None:
    """Delete what interrupted saves and deletions left."""
    for start in (_SAVING, _DROPPED):
        for leftover in folder.glob(f"{start}*"):
            _remove(leftover)


def prune(folder: Path, keep: int, newest: int, since: int) -> None:
    """Keep the last `keep` checkpoints up to step `newest`, which was just saved.

    Those after `since`, the last before it that the run loaded or saved, did not verify, and go.
    """
    steps = list_steps(folder)
    good = [step for step in steps if step <= since]
    for step in steps:
        if step not in [*good, newest][-keep:]:
            _drop(step_folder(folder, step))


def _drop(path: Path) -> None:
    """Delete a checkpoint, which until then is whole or, under its name, not there at all."""
    if os.path.lexists(path):
        aside = path.with_name(_DROPPED + path.name)
        _remove(aside)
        path.rename(aside)
        _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
            _remove(temporary)
            temporary.mkdir(parents=True)
            # The first save makes `folder` itself, whose name must last, too.
            sync_folder(folder.parent)

            write_json(temporary / STATE, {"step": step, **state})
            _save_tensors(temporary / MODEL, model)
            _save_tensors(temporary / OPTIMIZER, optimizer)
            write_json(temporary / MANIFEST, _manifest(temporary))

            # One that stands there already did not verify: the run went on from an older one.
            _drop(final)
            temporary.rename(final)
            sync_folder(folder)
        except BaseException:
            _remove(temporary)
            raise


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # Copied each: safetensors refuses tensors that share memory, as a tied head does.
    copies = {name: tensor.contiguous().to("cpu", copy=True) for name, tensor in tensors.items()}
    try:
        save_file(copies, path)
    except SafetensorError as error:
        # It says an error of the system as text.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error

    # safetensors would let nobody else read them.
    shutil.copymode(path.with_name(STATE), path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _manifest(path: Path) -> dict[str, Any]:
    """Return the size and SHA-256 of each file of a checkpoint that the manifest vouches for."""
    manifest = {}
    for name in (MODEL, OPTIMIZER, STATE):
        with open_regular(path / name) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            manifest[name] = {"bytes": file.tell(), "sha256": sha256}
    return manifest


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
        CheckpointError: a file is missing, is no regular file, or is not what the manifest says.
        OSError: a file cannot be read now (permissions, too many open files).
    """
    path = step_folder(folder, step)
    try:
        _verify(path)
        state = read_json(path / STATE)
        model = _load_tensors(path / MODEL)
        optimizer = _load_tensors(path / OPTIMIZER)
    except (RecordError, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in _MOMENTARY:
            raise cause from None
        raise CheckpointError(str(error)) from error

    if state.get("step") != step:
        raise CheckpointError(f"{path / STATE} is of step {state.get('step')}, not {step}")
    return Checkpoint(step, model, optimizer, state)


def _verify(path: Path) -> None:
    """Refuse a checkpoint whose files are not those that were written, to the last byte."""
    said = read_text(path / MANIFEST)
    found = _manifest(path)
    for name, facts in found.items():
        if facts["sha256"] not in said:
            raise CheckpointError(f"{path / name} does not verify against its manifest")
    if said != to_json(found):
        raise CheckpointError(f"{path / MANIFEST} is not as it was written")


def _load_tensors(path: Path) -> dict[str, Tensor]:
    """Load a file of tensors; one that is gone meanwhile is a file that cannot be read.

    safetensors says both that and a lack of memory by a RuntimeError.
    """
    with readable(path, SafetensorError, KeyError):
        try:
            return load_file(path)
        except RuntimeError as error:
            if path.exists():
                raise
            raise FileNotFoundError(errno.ENOENT, "is gone", str(path)) from error


def check_tensors(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not, name by name, of the expected shapes and types.

    So nothing is loaded in part, or spread over a larger shape.

    Raises:
        CheckpointError: naming the first that is missing, unknown or different.
    """
    for name in sorted(expected.keys() | found.keys()):
        theirs = _kind(found.get(name))
        own = _kind(expected.get(name))
        if theirs != own:
            raise CheckpointError(f"{what} holds {theirs} as {name}; this run's is {own}")


def _kind(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} of {list(tensor.shape)}"
