"""Leases of GPUs: locks on files that all dispatchers of a user share on one machine."""

import itertools
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from rope_exp.errors import ConfigError
from rope_exp.files import try_lock
from rope_exp.machine import gpus


def lease(count: int, runs_per_gpu: int) -> dict[str, list[int]]:
    """Lease some GPUs of this machine, all or none.

    A run that waits for two GPUs does not hold the free one, so that another run gets it.

    Args:
        count: how many.
        runs_per_gpu: how many runs may share each of them.
    Returns:
        The open descriptors that hold a GPU, by its UUID; {} if too few are free.
    Raises:
        ConfigError, OSError: the folder of leases cannot be used.
    """
    leases: dict[str, list[int]] = {}
    try:
        for gpu in gpus():
            if len(leases) == count:
                break
            descriptors = _lock(gpu, runs_per_gpu)
            if descriptors:
                leases[gpu] = descriptors
    except (ConfigError, OSError):
        # The run fails, and others go on.
        release(leases)
        raise
    if len(leases) == count:
        return leases
    release(leases)
    return {}


def release(leases: dict[str, list[int]]) -> None:
    """Release leases; a child that inherited one keeps it while it lives."""
    for descriptor in itertools.chain(*leases.values()):
        os.close(descriptor)
    leases.clear()


def _lock(gpu: str, num_places: int) -> list[int]:
    """Return descriptors that hold a place on the GPU, or none if all places are taken.

    Runs that share a GPU hold its file together, and a file of their place alone.
    """
    folder = _folder()
    whole = try_lock(folder / f"{gpu}.lock", shared=num_places > 1)
    if whole is None:
        return []
    if num_places == 1:
        return [whole]

    try:
        for number in range(num_places):
            place = try_lock(folder / f"{gpu}.{number}.lock")
            if place is not None:
                return [whole, place]
    except OSError:
        os.close(whole)
        raise
    os.close(whole)
    return []


def _folder() -> Path:
    """Return this user's folder of leases, which nobody else can write to.

    Everybody may write to the temporary folder, so another user may have put a link there, or a
    folder with links in it.
    """
    folder = Path(tempfile.gettempdir()) / f"rope_exp-gpus-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)

    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"{folder.name} in it must be a folder that only you can write to"
        raise ConfigError("TMPDIR", str(folder.parent), f"{reason}; remove it, or set TMPDIR")
    return folder
