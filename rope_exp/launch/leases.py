"""Leases of GPUs, by locks on files that all dispatchers of this machine share."""

import os
import tempfile
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.system.files import try_lock
from rope_exp.system.machine import gpus


def lease_gpus(config: RunConfig) -> dict[str, list[int]] | None:
    """Lease as many GPUs as the run has ranks, or none at all.

    With launch.runs_per_gpu above 1, a run shares a GPU with runs that have it, too. Each takes one
    of so many places, so all of them should have the same number.

    Args:
        config: resolved for this machine.
    Returns:
        Each GPU's name in CUDA_VISIBLE_DEVICES, with the descriptors of its open lock files: the
        lease lives as long as any process keeps them open. {} for a run on the CPU; None if too
        few GPUs are free now.
    """
    if config.launch.device != "cuda":
        return {}

    num_ranks = int(config.launch.num_processes)
    leases = {}
    for gpu in gpus():
        if descriptors := _try_lock_gpu(gpu, config.launch.runs_per_gpu):
            leases[gpu] = descriptors
        if len(leases) == num_ranks:
            return leases

    for descriptors in leases.values():
        close(descriptors)
    return None


def close(descriptors: list[int]) -> None:
    """Release the lock files of one GPU."""
    while descriptors:
        os.close(descriptors.pop())


def _try_lock_gpu(gpu: str, num_places: int) -> list[int]:
    """Return descriptors that hold a place on the GPU, or none if all places are taken.

    Runs that share a GPU hold its file together, and a file of their place alone.
    """
    folder = Path(tempfile.gettempdir()) / "rope_exp-gpus"
    # All users of the machine share the folder, whatever this user's umask.
    umask = os.umask(0)
    try:
        folder.mkdir(exist_ok=True)
        shared = num_places > 1
        of_gpu = try_lock(folder / f"{gpu}.lock", shared=shared)
        if of_gpu is None:
            return []
        if not shared:
            return [of_gpu]
        for place in range(num_places):
            of_place = try_lock(folder / f"{gpu}.{place}.lock")
            if of_place is not None:
                return [of_gpu, of_place]
        os.close(of_gpu)
        return []
    finally:
        os.umask(umask)
