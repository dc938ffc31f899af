"""The processes of a run: started one a rank, watched, asked to stop, judged by how they ended.

The ranks hold the run's lock and its GPUs as well, so that both live as long as the work.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from rope_exp.launch.job import Job
from rope_exp.system.errors import EXIT_CODES, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from rope_exp.system.machine import num_cores
from rope_exp.system.processes import DISPATCHER_ID, child_environment
from rope_exp.system.signals import StopSignal, held_back

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between a rank's failure and the end of the ranks that wait for it
STOP_SECONDS = 60.0  # the same where the rank was stopped: the first rank saves meanwhile


def start(job: Job) -> None:
    """Start one process a rank; they find each other by torch's own variables.

    The run's lock is held, its config written, and its GPUs are leased.
    """
    num_ranks = int(job.config.launch.num_processes)
    environment = _environment(job, num_ranks)

    # A rank that was asked to stop before it listens would fail.
    with held_back(), job.log.open("ab") if job.log else nullcontext() as output:
        for rank in range(num_ranks):
            if num_ranks > 1:
                environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = subprocess.Popen(
                [sys.executable, "-m", "rope_exp.training.worker", str(job.folder)],
                env=environment,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                pass_fds=[job.lock, *job.leases.values()],
                # A terminal's Ctrl-C reaches the dispatcher alone, which passes it on once.
                start_new_session=True,
            )
            job.ranks.append(process)


def poll(job: Job) -> None:
    """See which ranks have ended; with the last of them set the run's exit code.

    Where one rank has failed or left, the others are ended after a while, too. A rank says itself
    why it failed, unless a signal ended it.
    """
    codes = [process.poll() for process in job.ranks]
    ended = [code for code in codes if code is not None]
    if not ended:
        return
    job.ended_at = job.ended_at or time.monotonic()

    if min(ended) < 0 and not job.was_killed and not job.reason:
        who = "its process"
        if len(codes) > 1:
            who = f"process {codes.index(min(ended))} of {len(codes)}"
        job.reason = f"{who} was ended by {_signal_name(-min(ended))}"
    has_failed = bool(job.reason) or not {*ended} <= {*EXIT_CODES.values(), -signal.SIGKILL}

    if len(ended) < len(codes):
        grace = GRACE_SECONDS if has_failed else STOP_SECONDS
        if time.monotonic() - job.ended_at > grace:
            kill(job)
    elif has_failed:
        # A rank's refusal is the run's.
        job.exit_code = EXIT_USAGE if EXIT_USAGE in ended else EXIT_FAILED
    else:
        job.exit_code = EXIT_STOPPED if job.was_killed else max(ended)


def stop(job: Job) -> None:
    """Ask every rank to save and leave."""
    for process in job.ranks:
        process.terminate()


def kill(job: Job) -> None:
    """End the ranks that have not ended; the run's last checkpoint stands."""
    job.was_killed = True
    for process in job.ranks:
        process.kill()


class SignalRelay(StopSignal, AbstractContextManager["SignalRelay"]):
    """Passes a request to stop on to the ranks of every job; a second one ends them at once."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        # First: the next line installs handlers, which read it.
        self._jobs = jobs
        super().__init__()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # A handler that is not ours raised: submitit's does, ahead of its job's time limit.
        if error is not None:
            self.requested = True
            self.on_request()
            deadline = time.monotonic() + STOP_SECONDS
            for job in self._jobs:
                for process in job.ranks:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(deadline - time.monotonic(), 0.0))
        self.restore()

    def start(self, job: Job) -> None:
        """Start a job's ranks, and stop them at once if we were asked to meanwhile."""
        start(job)
        if self.requested:
            stop(job)

    def on_request(self) -> None:
        """Ask every rank to stop."""
        for job in self._jobs:
            stop(job)

    def on_repeat(self) -> None:
        """End every rank: one inside a long operation does not hear a second signal."""
        for job in self._jobs:
            kill(job)


def _signal_name(number: int) -> str:
    name = signal.Signals(number).name
    return f"{name} (the kernel does that where memory runs out)" if name == "SIGKILL" else name


def _environment(job: Job, num_ranks: int) -> dict[str, str]:
    """Return what all ranks of a run are told."""
    launch = job.config.launch
    environment = child_environment(**{DISPATCHER_ID: str(os.getpid())})

    num_threads = num_cores() // (num_ranks * int(launch.max_parallel))
    environment.setdefault("OMP_NUM_THREADS", str(max(num_threads, 1)))
    if launch.device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    if job.leases:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(job.leases)
    if num_ranks > 1:
        # A port that is free now.
        with socket.create_server(("localhost", 0)) as probe:
            port = probe.getsockname()[1]
        environment |= {
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    return environment
