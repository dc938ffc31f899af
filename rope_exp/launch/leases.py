"""GPUs that one run at a time may hold, by a lock on a file that every dispatcher of the machine knows. No torch."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.system.files import try_lock
from rope_exp.system.machine import gpus


@dataclass
class Lease:
    """One GPU of this machine, held by a lock on a file that every dispatcher of the machine knows."""

    gpu: str
    descriptor: int

    def release(self) -> None:
        """Give it back; a child that inherited the descriptor keeps the lock while it lives."""
        os.close(self.descriptor)


def _num_gpus(config: RunConfig) -> int:
    assert isinstance(config.launch.num_processes, int)
    return config.launch.num_processes if config.launch.device == "cuda" else 0


def lease_gpus(config: RunConfig) -> list[Lease] | None:
    """Lease the GPUs of one run, all or none; None if too few are free now."""
    leases: list[Lease] = []
    folder = Path(tempfile.gettempdir()) / "rope_exp-gpus"
    for gpu in gpus() if _num_gpus(config) else []:
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)  # shared by the users of the machine, whatever this one's umask
        path = folder / f"{gpu}.lock"
        try:
            descriptor = try_lock(path)
        except (
            PermissionError
        ):  # made before this version, by a user with another umask: held or not, it is not ours
            continue
        if descriptor is None:
            continue
        if path.stat().st_uid == os.getuid():
            os.fchmod(descriptor, 0o666)
        leases.append(Lease(gpu, descriptor))
        if len(leases) == _num_gpus(config):
            return leases
    if len(leases) == _num_gpus(config):
        return leases
    for lease in leases:
        lease.release()
    return None
