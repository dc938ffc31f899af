"""Exclusive leases of GPUs, by locks on files that all dispatchers of this machine share."""

import os
import tempfile
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.system.files import try_lock
from rope_exp.system.machine import gpus


def lease_gpus(config: RunConfig) -> dict[str, int] | None:
    """Lease as many GPUs as the run has ranks, or none at all.

    Args:
        config: resolved for this machine.
    Returns:
        Each GPU's name in CUDA_VISIBLE_DEVICES, with the descriptor of its open lock file: the
        lease lives as long as any process keeps that open. {} for a run on the CPU; None if too
        few GPUs are free now.
    """
    if config.launch.device != "cuda":
        return {}

    num_ranks = int(config.launch.num_processes)
    leases = {}
    for gpu in gpus():
        descriptor = _try_lock_gpu(gpu)
        if descriptor is not None:
            leases[gpu] = descriptor
        if len(leases) == num_ranks:
            return leases

    for descriptor in leases.values():
        os.close(descriptor)
    return None


def _try_lock_gpu(gpu: str) -> int | None:
    """Return a descriptor that holds the GPU's lock file, or None if another process holds it."""
    folder = Path(tempfile.gettempdir()) / "rope_exp-gpus"
    # All users of the machine share the folder, whatever this user's umask.
    umask = os.umask(0)
    try:
        folder.mkdir(exist_ok=True)
        return try_lock(folder / f"{gpu}.lock")
    finally:
        os.umask(umask)
