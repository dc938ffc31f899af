"""A run of a command: its leases of GPUs, its processes (one per rank), and its exit code."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_CODES, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from rope_exp.identity import chosen
from rope_exp.machine import DISPATCHER_ID, child_environment, num_cores
from rope_exp.signals import PASSED_ON, STOP_SIGNALS, StopSignal, held_back

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between a rank's failure and the end of the ranks that wait for it
STOP_SECONDS = 60.0  # the same if the rank was stopped: the first rank saves meanwhile


@dataclass
class Job:
    """One run of a command: waiting until it has `ranks`, and ended once it has an `exit_code`.

    Attributes:
        title: shown to users; empty: its variant and seed.
        log: the file of its ranks' output; None: the terminal.
        lock: the descriptor that holds the folder's lock; -1 without one.
        leases: the descriptors of lock files that hold each of its GPUs.
        ended_at: when the first rank was seen to have ended, by the monotonic clock; 0: none yet.
        was_killed: we killed the ranks that were still running.
        reason: of a failure, if the output of its ranks is not enough.
    """

    config: RunConfig
    title: str = ""
    log: Path | None = None
    lock: int = -1
    leases: dict[str, list[int]] = field(default_factory=dict)
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
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
        """One of waiting, running, finished, diverged, stopped and failed."""
        if self.exit_code is not None:
            statuses = {code: status for status, code in EXIT_CODES.items()}
            return statuses.get(self.exit_code, "failed")
        return "running" if self.ranks else "waiting"

    def fail(self, error: Exception) -> None:
        """Mark the run as failed, by an error outside its ranks."""
        self.exit_code = EXIT_FAILED if isinstance(error, OSError) else EXIT_USAGE
        self.reason = str(error)

    def unlock(self) -> None:
        """Release the folder's lock; a child that inherited it keeps it while it lives."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def release_gpus(self) -> None:
        """Release every GPU; a child that inherited a lease keeps it while it lives."""
        for descriptor in itertools.chain(*self.leases.values()):
            os.close(descriptor)
        self.leases.clear()


def lease_gpus(job: Job) -> bool:
    """Lease as many GPUs as the run has ranks, or none if too few are free; return if it has them.

    A lease has the descriptors of a GPU's lock files, and lives while a process has them open.
    """
    if job.config.launch.device != "cuda":
        return True
    return chosen("leases", "gpus", "launch.device").lease(job)


def start(job: Job) -> None:
    """Start one process per rank, which inherit the run's lock and leases."""
    launch = job.config.launch
    num_ranks = int(launch.num_processes)
    environment = child_environment(**{DISPATCHER_ID: str(os.getpid())})
    # The run's name at a tracker.
    environment.setdefault("WANDB_NAME", job.name[:128])
    num_threads = num_cores() // (num_ranks * int(launch.max_parallel))
    environment.setdefault("OMP_NUM_THREADS", str(max(num_threads, 1)))
    # By default, threads that wait for a parallel region spin for long. Beside other work they take
    # the cores from the threads that they wait for (docs/performance.md).
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "1000")
    if launch.device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    if job.leases:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(job.leases)
    if num_ranks > 1:
        with socket.create_server(("localhost", 0)) as probe:
            port = probe.getsockname()[1]
        environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = str(num_ranks)
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    # A stop signal before a rank has installed its handlers would make it fail.
    with held_back(), job.log.open("ab") if job.log else nullcontext() as output:
        for rank in range(num_ranks):
            if num_ranks > 1:
                environment["RANK"] = environment["LOCAL_RANK"] = str(rank)
            process = subprocess.Popen(
                [sys.executable, "-m", "rope_exp.worker", str(job.folder)],
                env=environment,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                pass_fds=[job.lock, *itertools.chain(*job.leases.values())],
                # A terminal's Ctrl-C reaches only the dispatcher, which passes it on once.
                start_new_session=True,
            )
            job.ranks.append(process)


def poll(job: Job) -> None:
    """Set the run's exit code once all ranks have ended, or kill the rest after a grace period.

    A rank reports the reason of its failure itself, unless a signal ended it.
    """
    codes = [process.poll() for process in job.ranks]
    ended = [code for code in codes if code is not None]
    if not ended:
        return
    job.ended_at = job.ended_at or time.monotonic()

    if min(ended) < 0 and not job.was_killed and not job.reason:
        rank = codes.index(min(ended))
        who = f"process {rank} of {len(codes)}" if len(codes) > 1 else "its process"
        job.reason = f"{who} was ended by {signal.Signals(-min(ended)).name}"
        if min(ended) == -signal.SIGKILL:
            job.reason += " (the kernel does that where memory runs out)"
    has_failed = bool(job.reason) or not {*ended} <= {*EXIT_CODES.values(), -signal.SIGKILL}

    if len(ended) < len(codes):
        grace = GRACE_SECONDS if has_failed else STOP_SECONDS
        if time.monotonic() - job.ended_at > grace:
            kill(job)
    elif has_failed:
        # If a rank refuses the config, the run does.
        job.exit_code = EXIT_USAGE if EXIT_USAGE in ended else EXIT_FAILED
    else:
        job.exit_code = EXIT_STOPPED if job.was_killed else max(ended)


def stop(job: Job) -> None:
    """Ask every rank to save and exit."""
    for process in job.ranks:
        process.send_signal(PASSED_ON)


def kill(job: Job) -> None:
    """Kill the ranks that are still running; the run's last checkpoint remains."""
    job.was_killed = True
    for process in job.ranks:
        process.kill()


class SignalRelay(StopSignal, AbstractContextManager["SignalRelay"]):
    """Passes a stop request on to the ranks of every job; a second request kills them."""

    # submitit's handler of SIGUSR2 stays.
    heeded = STOP_SIGNALS

    def __init__(self, jobs: Sequence[Job]) -> None:
        # Set first: the next line installs handlers, which read it.
        self._jobs = jobs
        super().__init__()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Another package's handler raised: submitit's does, ahead of its job's time limit.
        if error is not None:
            self.request()
            deadline = time.monotonic() + STOP_SECONDS
            for process in itertools.chain(*(job.ranks for job in self._jobs)):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline - time.monotonic(), 0.0))
        self.restore()

    def on_request(self) -> None:
        """Ask every rank to stop."""
        for job in self._jobs:
            stop(job)

    def on_repeat(self) -> None:
        """Kill every rank: inside a long operation it does not notice a second signal."""
        for job in self._jobs:
            kill(job)
