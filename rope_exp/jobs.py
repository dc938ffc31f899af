"""Leases of GPUs, by locks on files that all dispatchers of this machine share."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_CODES, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from rope_exp.files import try_lock
from rope_exp.machine import gpus


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


@dataclass
class Job:
    """One run that a command completes; a sweep has several.

    Attributes:
        config: resolved for this machine.
        title: shown to users; empty: its variant and seed.
        exit_code: None until the run has ended, or was found to be done.
        reason: of a failure, if the output of its ranks is not enough.
        seen_elsewhere: when another dispatcher was last seen to run it, by the monotonic clock;
            0: never.
        is_begun: whether this command has acquired its folder and written its config there.
        lock: the descriptor that holds the folder's lock; -1 without one.
        leases: the GPUs that the run holds, each with the descriptors that hold its locks.
        log: the file of its ranks' output; None: the terminal.
        ranks: its processes, once started.
        ended_at: when the first rank was seen to have ended, by the monotonic clock; 0: none yet.
        was_killed: whether we killed the ranks that were still running.
    """

    config: RunConfig
    title: str = ""
    exit_code: int | None = None
    reason: str = ""
    seen_elsewhere: float = 0.0
    is_begun: bool = False
    lock: int = -1
    leases: dict[str, list[int]] = field(default_factory=dict)
    log: Path | None = None
    ranks: list[Popen[bytes]] = field(default_factory=list)
    ended_at: float = 0.0
    was_killed: bool = False

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
        """One of finished, diverged, stopped, failed, running, elsewhere and waiting."""
        # If its sweep was stopped before the run began, the run itself is not "stopped".
        never_began = self.exit_code == EXIT_STOPPED and not self.ranks
        if self.exit_code is not None and not never_began:
            statuses = {code: status for status, code in EXIT_CODES.items()}
            return statuses.get(self.exit_code, "failed")
        if self.ranks:
            return "running"
        return "elsewhere" if self.seen_elsewhere else "waiting"

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
        while self.leases:
            close(self.leases.popitem()[1])
