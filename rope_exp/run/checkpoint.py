"""Checkpoints: saved whole or not at all, loaded verified or not at all.

checkpoints/step_XXXXXXXX/ holds model.safetensors, optimizer.safetensors, state.json and manifest.json (size and
SHA-256 of the other three). A save writes into a temporary folder, syncs every file and the folder, renames it, and
syncs the parent; one that is dropped is renamed before it is deleted. So whatever interrupts it, the newest checkpoint
is the old or the new one, and each is whole. Pickle is never read or written.
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

MODEL, OPTIMIZER, STATE, MANIFEST = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)
_SAVING, _DROPPED = ".saving-", ".dropped-"
MOMENTARY = (
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
    errno.EINTR,
)


@dataclass(frozen=True)
class Checkpoint:
    """What a step left behind."""

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
) -> Path:
    """Save a checkpoint under `folder` (the run's `checkpoints/`), atomically.

    Raises:
        DiskError: the disk is full. OSError: it is broken. The temporary folder is gone and older checkpoints stand.
    """
    final, temporary = folder / f"step_{step:08d}", folder / f"{_SAVING}{step:08d}"
    try:
        _remove(temporary)
        temporary.mkdir(parents=True)
        sync_folder(folder.parent)  # of the first save, its own name
        _save_tensors(temporary / MODEL, model)
        _save_tensors(temporary / OPTIMIZER, optimizer)
        write_json(temporary / STATE, {"step": step, **state})
        for name in (MODEL, OPTIMIZER):  # safetensors lets nobody else read them
            (temporary / name).chmod((temporary / STATE).stat().st_mode)
        manifest = {name: _fingerprint(temporary / name) for name in (MODEL, OPTIMIZER, STATE)}
        write_json(temporary / MANIFEST, manifest)
        _drop(final)  # only ever one that did not verify: the run went on from an older one
        temporary.rename(final)
        sync_folder(folder)
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, DiskError) or (isinstance(error, OSError) and is_full(error)):
            needed_bytes = sum(tensor.nbytes for tensor in (*model.values(), *optimizer.values()))
            raise disk_full(folder, needed_bytes, f"the checkpoint of step {step}") from None
        raise
    return final


def clear_leftovers(folder: Path) -> None:
    """Delete what interrupted saves and deletions left."""
    for pattern in (f"{_SAVING}*", f"{_DROPPED}*"):
        for leftover in folder.glob(pattern):
            _remove(leftover)


def prune(folder: Path, keep: int, newest: int, broken: Collection[int] = ()) -> None:
    """Keep the `keep` checkpoints up to step `newest`, just saved, without those that were found `broken`.

    Later ones did not verify, either: the run went on from an older one.
    """
    steps = list_steps(folder)
    kept = [step for step in steps if step <= newest and (step == newest or step not in broken)][
        -keep:
    ]
    for step in steps:
        if step not in kept:
            _drop(folder / f"step_{step:08d}")


def _drop(path: Path) -> None:
    """Delete a checkpoint, which until then is whole or, under its name, not there at all."""
    if os.path.lexists(path):
        aside = path.with_name(f"{_DROPPED}{path.name}")
        _remove(aside)
        path.rename(aside)
        _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def list_steps(folder: Path) -> list[int]:
    """The steps of the checkpoints under `folder`, oldest first, verified or not."""
    names = (path.name for path in folder.glob("step_*") if path.is_dir() and not path.is_symlink())
    return sorted(int(name[5:]) for name in names if re.fullmatch("step_[0-9]{8}", name))


def state_file(folder: Path, step: int) -> Path:
    """Where the scalars of a checkpoint stand."""
    return folder / f"step_{step:08d}" / STATE


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
            say(f"warning: {error}; trying the checkpoint before it")
    if broken:
        hint = "restore one (a run can begin anew with run.fresh=true)"
        raise CheckpointError(f"no checkpoint under {folder} verifies ({broken[0]}); {hint}")
    return None


def load(folder: Path, step: int) -> Checkpoint:
    """Load the checkpoint of `step`, every byte verified first.

    Raises:
        CheckpointError: a file is missing, is no regular file, or its size or SHA-256 is not the manifest's.
        OSError: one cannot be read now (permissions, too many open files).
    """
    path = folder / f"step_{step:08d}"
    try:
        manifest = read_json(path / MANIFEST)
        if read_text(path / MANIFEST) != to_json(manifest):
            raise CheckpointError(f"{path / MANIFEST} is not as it was written")
        if manifest.keys() != {MODEL, OPTIMIZER, STATE}:
            raise CheckpointError(f"{path / MANIFEST} must name {MODEL}, {OPTIMIZER} and {STATE}")
        for name in (MODEL, OPTIMIZER, STATE):
            if manifest[name] != _fingerprint(path / name):
                raise CheckpointError(f"{path / name} does not verify against its manifest")
        state = read_json(path / STATE)
    except (RecordError, OSError) as error:
        cause = error.__cause__ if isinstance(error, RecordError) else error
        if isinstance(cause, OSError) and cause.errno in MOMENTARY:
            raise cause from None  # that it cannot be read now does not say that it is damaged
        raise CheckpointError(str(error)) from error
    if state.get("step") != step:
        raise CheckpointError(f"{path / STATE} is of step {state.get('step')}, not {step}")
    return Checkpoint(step, _load_tensors(path / MODEL), _load_tensors(path / OPTIMIZER), state)


def check_tensors(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not, name by name, of the expected shapes and types: nothing is loaded in part or spread.

    Raises:
        CheckpointError: naming the first that is missing, unknown or different.
    """
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            raise CheckpointError(
                f"{what} {'lacks' if name in expected else 'holds an unknown'} {name}"
            )
        here, there = found[name], expected[name]
        if (here.shape, here.dtype) != (there.shape, there.dtype):
            raise CheckpointError(
                f"{what} holds {name} as {here.dtype} of {list(here.shape)}; "
                f"this run's is {there.dtype} of {list(there.shape)}"
            )


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file(_own_storage(tensors), path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # it says an error of the system as text
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _load_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} holds no tensors that safetensors reads: {error}") from error


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
    with open_regular(path) as file:
        return {
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }
