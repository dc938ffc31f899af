"""A command's runs, and their leases of GPUs: locks on files that all dispatchers share."""

import itertools
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_CODES, EXIT_FAILED, EXIT_USAGE
from rope_exp.files import try_lock
from rope_exp.machine import gpus

Leases = dict[str, list[int]]


def lease_gpus(config: RunConfig) -> Leases | None:
    """Lease as many GPUs as the run has ranks, or return None if too few are free now.

    A lease has the descriptors of a GPU's lock files, and lives while a process has them open.
    """
    leases: Leases = {}
    if config.launch.device != "cuda":
        return leases

    for gpu in gpus():
        if descriptors := _try_lock_gpu(gpu, config.launch.runs_per_gpu):
            leases[gpu] = descriptors
        if len(leases) == config.launch.num_processes:
            return leases
    release(leases)
    return None


def release(leases: Leases) -> None:
    """Release GPUs; a child that inherited a lock keeps it while it lives."""
    for descriptor in itertools.chain(*leases.values()):
        os.close(descriptor)
    leases.clear()


def _try_lock_gpu(gpu: str, num_places: int) -> list[int]:
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


@dataclass
class Job:
    """One run of a command: waiting until it has `ranks`, and ended once it has an `exit_code`.

    Attributes:
        title: shown to users; empty: its variant and seed.
        log: the file of its ranks' output; None: the terminal.
        lock: the descriptor that holds the folder's lock; -1 without one.
        is_elsewhere: another dispatcher was running it when this one tried to start it.
        ended_at: when the first rank was seen to have ended, by the monotonic clock; 0: none yet.
        was_killed: we killed the ranks that were still running.
        reason: of a failure, if the output of its ranks is not enough.
    """

    config: RunConfig
    title: str = ""
    log: Path | None = None
    lock: int = -1
    leases: Leases = field(default_factory=dict)
    is_elsewhere: bool = False
    ranks: list[Popen[bytes]] = field(default_factory=list)
    ended_at: float = 0.0
    was_killed: bool = False
    exit_code: int | None = None
    reason: str = ""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.config.folder

    @property
    def name(self) -> str:
        """The name shown to users."""
        return self.title or self.config.name

    @property
    def status(self) -> str:
        """One of waiting, elsewhere, running, finished, diverged, stopped and failed."""
        if self.exit_code is not None:
            statuses = {code: status for status, code in EXIT_CODES.items()}
            return statuses.get(self.exit_code, "failed")
        if self.ranks:
            return "running"
        return "elsewhere" if self.is_elsewhere else "waiting"

    def fail(self, error: Exception) -> None:
        """Mark the run as failed, by an error outside its ranks."""
        self.exit_code = EXIT_FAILED if isinstance(error, OSError) else EXIT_USAGE
        self.reason = str(error)

    def unlock(self) -> None:
        """Release the folder's lock; a child that inherited it keeps it while it lives."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def release(self) -> None:
        """Release the folder's lock and every GPU."""
        self.unlock()
        release(self.leases)
