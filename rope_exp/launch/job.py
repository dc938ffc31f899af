"""One run of a sweep: how it stands, and what it holds while it runs."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from rope_exp.config.run import RunConfig
from rope_exp.system.errors import EXIT_CODES, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE


@dataclass
class Job:
    """One run that a command is to bring to its end; a sweep has several.

    Attributes:
        config: resolved for this machine.
        folder: of the run.
        checkpoint_bytes: what one checkpoint takes.
        title: what a person calls it, where that is not its variant and seed.
        exit_code: None until the run has ended, or was found to be done.
        reason: of a failure, where what its ranks say is not enough.
        seen_elsewhere: when another dispatcher was last seen to run it, by the monotonic clock;
            0: never.
        lock: the descriptor that holds the folder's lock; -1 without one.
        leases: the GPUs that the run holds, each with the descriptor that holds its lock.
        log: where its ranks write; None: to the terminal.
        ranks: its processes, once they were started.
        ended_at: when the first of these was seen to have ended, by the monotonic clock; 0: none
            yet.
        was_killed: whether we ended those ranks that had not ended.
    """

    config: RunConfig
    folder: Path
    checkpoint_bytes: int = 0
    title: str = ""
    exit_code: int | None = None
    reason: str = ""
    seen_elsewhere: float = 0.0
    lock: int = -1
    leases: dict[str, int] = field(default_factory=dict)
    log: Path | None = None
    ranks: list[Popen[bytes]] = field(default_factory=list)
    ended_at: float = 0.0
    was_killed: bool = False

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.title or self.config.name

    @property
    def status(self) -> str:
        """One of finished, diverged, stopped, failed, running, elsewhere and waiting."""
        # A run that never began, as its sweep was stopped, has nothing that was stopped.
        never_began = self.exit_code == EXIT_STOPPED and not self.ranks
        if self.exit_code is not None and not never_began:
            statuses = {code: status for status, code in EXIT_CODES.items()}
            return statuses.get(self.exit_code, "failed")
        if self.ranks:
            return "running"
        return "elsewhere" if self.seen_elsewhere else "waiting"

    def fail(self, error: Exception) -> None:
        """Note that the run has failed, by an error that is not its ranks'."""
        self.exit_code = EXIT_FAILED if isinstance(error, OSError) else EXIT_USAGE
        self.reason = str(error)

    def unlock(self) -> None:
        """Give the folder's lock back; a child that inherited it keeps it while it lives."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def release(self) -> None:
        """Give back the folder's lock and every GPU."""
        self.unlock()
        while self.leases:
            os.close(self.leases.popitem()[1])
