"""Leases of GPUs: locks on files that all dispatchers of a machine share."""

import itertools
import os
import tempfile
from pathlib import Path

from rope_exp.files import try_lock
from rope_exp.machine import gpus


def lease(count: int, runs_per_gpu: int) -> dict[str, list[int]]:
    """Return the descriptors that lease `count` GPUs, by GPU; {} if too few are free.

    A run that waits for two GPUs does not hold the free one, so that another run gets it.
    """
    leases: dict[str, list[int]] = {}
    for gpu in gpus():
        if len(leases) == count:
            break
        if descriptors := _lock(gpu, runs_per_gpu):
            leases[gpu] = descriptors
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
    folder = Path(tempfile.gettempdir()) / "rope_exp-gpus"
    # All users of the machine share the folder, whatever this user's umask.
    umask = os.umask(0)
    try:
        folder.mkdir(exist_ok=True)
        whole = try_lock(folder / f"{gpu}.lock", shared=num_places > 1)
        if whole is None:
            return []
        if num_places == 1:
            return [whole]
        for number in range(num_places):
            place = try_lock(folder / f"{gpu}.{number}.lock")
            if place is not None:
                return [whole, place]
        os.close(whole)
        return []
    finally:
        os.umask(umask)
