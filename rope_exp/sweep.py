"""The dispatcher: admit the runs of a command, and bring them to their end."""

import contextlib
import time
from collections.abc import Callable, Sequence

from rope_exp import ranks, worker
from rope_exp.admit import acquire, acquire_or_refuse, admit, resolved
from rope_exp.config import DEFAULT_OUTPUT, RunConfig
from rope_exp.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    ConfigError,
    RecordError,
    keep_log,
    log,
)
from rope_exp.files import disk_full, free_bytes
from rope_exp.folder import LOG
from rope_exp.identity import choices, chosen
from rope_exp.ranks import POLL_SECONDS, Job, SignalRelay, lease_gpus

LOG_BYTES = 1 << 16  # below this, a log may lack its last words
# Between two attempts to start waiting runs, whose GPU or folder another dispatcher may release.
WAIT_SECONDS = 1.0


def dispatch(configs: Sequence[RunConfig], titles: Sequence[str]) -> tuple[int, list[Job]]:
    """Resolve, admit and complete every run; return the exit code, of a sweep 0, 1 or 75."""
    jobs = admit([resolved(config) for config in configs], titles)
    fresh = configs[0].run.fresh
    # Every old result is moved aside now: if the sweep is stopped, none passes for a new one.
    if fresh and len(jobs) > 1:
        for job in jobs:
            if acquire(job):
                job.unlock()

    code = run_all(jobs) if len(jobs) > 1 else _run_one(jobs[0])
    if code == EXIT_STOPPED and fresh:
        log("leave out run.fresh=true to resume: with it, the same command begins anew")
    return code, jobs


def _run_one(job: Job) -> int:
    """Run the only run of a command; its ranks write to the terminal."""
    acquire_or_refuse(job)
    if job.exit_code is not None:
        return job.exit_code
    if job.config.launch.inline:
        return worker.run_here(job.config)

    if not lease_gpus(job):
        log(f"{job.name}: every GPU is leased to another run; waiting for one")
    bring_to_end([job])
    if job.reason:
        keep_log(job.folder / LOG)
        log(f"error: {job.name}: {job.reason}")
    return EXIT_STOPPED if job.exit_code is None else job.exit_code


def run_all(
    jobs: Sequence[Job],
    on_end: Callable[[Sequence[Job]], None] = lambda ended: None,
) -> int:
    """Bring a sweep to its end and return its exit code; ranks write to a log in each folder."""
    for job in jobs:
        job.log = job.folder / LOG
    views = [chosen("view", name, "view").View(jobs) for name in choices("view")]
    bring_to_end(jobs, [on_end, *(view.show for view in views)])

    failed = [job for job in jobs if job.status in ("failed", "diverged")]
    for job in failed:
        why = f": {job.reason.splitlines()[-1]}" if job.reason else ""
        log(f"{job.name}: {job.status} (exit code {job.exit_code}), see {job.log}{why}")

    if any(job.exit_code in (None, EXIT_STOPPED) for job in jobs):
        log("stopped; the same command resumes")
        return EXIT_STOPPED

    for group in sorted({job.config.group for job in jobs if job.config.run.dir is None}):
        command = f"rope-exp report --group {group} --out my/{group}"
        log(f"in {DEFAULT_OUTPUT / group}; its table: {command}")
    return EXIT_FAILED if failed else EXIT_DONE


def bring_to_end(
    jobs: Sequence[Job],
    on_poll: Sequence[Callable[[Sequence[Job]], None]] = (),
) -> None:
    """Start runs in their order, and poll them until all have ended or a stop is requested.

    `on_poll` is called after every poll, with the runs that have ended since the last one.
    """
    try_again_at = 0.0
    with SignalRelay(jobs) as relay:
        while left := [job for job in jobs if job.exit_code is None]:
            running = [job for job in left if job.ranks]
            if relay.requested and not running:
                return
            now = time.monotonic()
            for job in running:
                ranks.poll(job)
                if job.exit_code is not None:
                    try_again_at = now
                    _release(job)
            if now >= try_again_at and not relay.requested:
                try_again_at = now + WAIT_SECONDS
                _start_waiting(left, relay)

            ended = [job for job in left if job.exit_code is not None]
            for call in on_poll:
                call(ended)
            time.sleep(POLL_SECONDS)


def _release(job: Job) -> None:
    """Complete the log of a run that has ended, and release its folder and GPUs."""
    if job.log and job.ranks and job.status == "failed":
        # The log may lie on a full disk, where ranks cannot write their own reason.
        if not job.reason and free_bytes(job.folder) < LOG_BYTES:
            job.reason = str(disk_full(job.folder, LOG_BYTES, "its log"))
        elif job.reason:
            with contextlib.suppress(OSError), job.log.open("a") as file:
                file.write(f"error: {job.reason}\n")
    job.unlock()
    job.release_gpus()


def _start_waiting(jobs: Sequence[Job], relay: SignalRelay) -> None:
    """Start the runs that have a place: theirs and the running runs' max_parallel allow them."""
    running = [job for job in jobs if job.status == "running"]
    for job in jobs:
        limit = min(int(other.config.launch.max_parallel) for other in [job, *running])
        is_waiting = job.status in ("waiting", "elsewhere")
        if not is_waiting or len(running) >= limit or not lease_gpus(job):
            continue
        try:
            if (job.lock >= 0 or acquire(job)) and job.exit_code is None:
                ranks.start(job)
        except (ConfigError, RecordError, OSError) as error:
            # Only this run fails; the others continue.
            job.fail(error)
            ranks.kill(job)

        if job.status != "running":
            _release(job)
            continue
        running.append(job)
        # A stop may have been requested meanwhile.
        if relay.requested:
            ranks.stop(job)
