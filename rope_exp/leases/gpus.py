"""Leases of GPUs: locks on files that all dispatchers of a machine share."""

import os
import tempfile
from pathlib import Path

from rope_exp.files import try_lock
from rope_exp.machine import gpus
from rope_exp.sweep import Job


def lease(job: Job) -> bool:
    """Lease as many GPUs as the run has ranks, or none if too few are free; return if it has them.

    A run that waits for two GPUs does not hold the free one, so that another run gets it.
    """
    launch = job.config.launch
    for gpu in gpus():
        if len(job.leases) == launch.num_processes:
            break
        if descriptors := _lock(gpu, launch.runs_per_gpu):
            job.leases[gpu] = descriptors
    if len(job.leases) == launch.num_processes:
        return True
    job.release_gpus()
    return False


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
