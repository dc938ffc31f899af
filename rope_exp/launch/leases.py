"""GPUs that one run at a time holds, by locks on files that every dispatcher here knows."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.system.files import try_lock
from rope_exp.system.machine import gpus


@dataclass(frozen=True)
class Lease:
    """One GPU of this machine.

    Attributes:
        gpu: what CUDA_VISIBLE_DEVICES calls it.
        descriptor: an open lock file; the lease lives as long as any process has it open.
    """

    gpu: str
    descriptor: int

    def release(self) -> None:
        """Give the GPU back; a child that inherited the descriptor keeps it while it lives."""
        os.close(self.descriptor)


def lease_gpus(config: RunConfig) -> list[Lease] | None:
    """Lease as many GPUs as the run has ranks, or none at all.

    Args:
        config: resolved for this machine.
    Returns:
        No lease for a run on the CPU; None if too few GPUs are free now.
    """
    if config.launch.device != "cuda":
        return []

    num_ranks = int(config.launch.num_processes)
    leases: list[Lease] = []
    for gpu in gpus():
        if len(leases) < num_ranks:
            descriptor = _try_lock_gpu(gpu)
            if descriptor is not None:
                leases.append(Lease(gpu, descriptor))

    if len(leases) == num_ranks:
        return leases
    for lease in leases:
        lease.release()
    return None


def _try_lock_gpu(gpu: str) -> int | None:
    """Return a descriptor that holds the GPU's lock file, or None while another process does."""
    folder = Path(tempfile.gettempdir()) / "rope_exp-gpus"
    if not folder.exists():
        folder.mkdir(exist_ok=True)
        # Shared by the users of the machine, whatever this one's umask.
        folder.chmod(0o777)

    path = folder / f"{gpu}.lock"
    descriptor = try_lock(path)
    if descriptor is not None and path.stat().st_uid == os.getuid():
        os.fchmod(descriptor, 0o666)
    return descriptor
