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
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rope_exp.system.console import say
from rope_exp.system.errors import CheckpointError, DiskError, RecordError
from rope_exp.system.files import (
    disk_full,
    is_full,
    open_regular,
    read_json,
    read_text,
    sync_folder,
    to_json,
    write_json,
)

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"

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


def step_folder(folder: Path, step: int) -> Path:
    """Return where the checkpoint of `step` stands below a run's `checkpoints/`."""
    return folder / f"step_{step:08d}"


def state_file(folder: Path, step: int) -> Path:
    """Return where the scalars of the checkpoint of `step` stand."""
    return step_folder(folder, step) / STATE


def list_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints below `folder`, oldest first, verified or not."""
    steps = []
    for path in folder.glob("step_*"):
        name = re.fullmatch("step_([0-9]{8})", path.name)
        if name and path.is_dir() and not path.is_symlink():
            steps.append(int(name[1]))
    return sorted(steps)


def clear_leftovers(folder: Path) -> None:
    """Delete what interrupted saves and deletions left."""
    for start in (_SAVING, _DROPPED):
        for leftover in folder.glob(f"{start}*"):
            _remove(leftover)


def prune(folder: Path, keep: int, newest: int, broken: Collection[int] = ()) -> None:
    """Keep the last `keep` checkpoints up to step `newest`, which was just saved.

    Later ones go: they did not verify, and the run went on from an older one. So do those among
    the earlier that were found `broken`.
    """
    steps = list_steps(folder)
    good = [step for step in steps if step < newest and step not in broken]
    kept = [*good, newest][-keep:]
    for step in steps:
        if step not in kept:
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
    try:
        _remove(temporary)
        temporary.mkdir(parents=True)
        # The first save makes `folder` itself, whose name must last, too.
        sync_folder(folder.parent)

        write_json(temporary / STATE, {"step": step, **state})
        mode = (temporary / STATE).stat().st_mode
        for name, tensors in ((MODEL, model), (OPTIMIZER, optimizer)):
            _save_tensors(temporary / name, tensors)
            # safetensors would let nobody else read them.
            (temporary / name).chmod(mode)
        write_json(temporary / MANIFEST, _manifest(temporary))

        # A checkpoint that stands there already did not verify: the run went on from an older one.
        _drop(final)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and (isinstance(error, DiskError) or is_full(error)):
            needed_bytes = sum(tensor.nbytes for tensor in (*model.values(), *optimizer.values()))
            raise disk_full(folder, needed_bytes, f"the checkpoint of step {step}") from None
        raise


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file(_own_storage(tensors), path)
    except SafetensorError as error:
        # It says an error of the system as text.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, sharing no memory, which safetensors refuses.

    So a tied head is copied.
    """
    owned: dict[int, str] = {}
    result = {}
    for name, tensor in tensors.items():
        on_cpu = tensor.contiguous().cpu()
        owner = owned.setdefault(on_cpu.data_ptr(), name)
        result[name] = on_cpu if owner == name else on_cpu.clone()
    return result


def _manifest(path: Path) -> dict[str, Any]:
    return {name: _fingerprint(path / name) for name in (MODEL, OPTIMIZER, STATE)}


def _fingerprint(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        return {
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


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
            say(f"warning: {error}; trying the checkpoint before it")
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
    except (RecordError, OSError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in _MOMENTARY:
            raise cause from None
        raise CheckpointError(str(error)) from error

    if state.get("step") != step:
        raise CheckpointError(f"{path / STATE} is of step {state.get('step')}, not {step}")
    return Checkpoint(step, _load_tensors(path / MODEL), _load_tensors(path / OPTIMIZER), state)


def _verify(path: Path) -> None:
    """Refuse a checkpoint whose files are not those that were written, to the last byte."""
    said = read_json(path / MANIFEST)
    found = _manifest(path)
    for name in found:
        if said.get(name) != found[name]:
            raise CheckpointError(f"{path / name} does not verify against its manifest")
    if read_text(path / MANIFEST) != to_json(found):
        raise CheckpointError(f"{path / MANIFEST} is not as it was written")


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} holds no tensors that safetensors reads: {error}") from error


def check_tensors(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not, name by name, of the expected shapes and types.

    So nothing is loaded in part, or spread over a larger shape.

    Raises:
        CheckpointError: naming the first that is missing, unknown or different.
    """
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise CheckpointError(f"{what} lacks {name}")
        if name not in expected:
            raise CheckpointError(f"{what} holds an unknown {name}")

        tensor = found[name]
        own = expected[name]
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            raise CheckpointError(
                f"{what} holds {name} as {tensor.dtype} of {list(tensor.shape)}; "
                f"this run's is {own.dtype} of {list(own.shape)}"
            )
