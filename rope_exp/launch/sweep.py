"""The dispatcher: admits every run, then starts each one's ranks in fresh processes and waits.

It handles a single run and a sweep. Each run leases its GPUs and acquires its folder's lock, which
its ranks hold, too. A failed run never stops the others. A run that is done is not started again,
and a rerun resumes where each run stopped. A sweep waits for a run that another dispatcher is
running.
"""

import contextlib
import time
from collections.abc import Callable, Sequence

from rope_exp.config.run import DEFAULT_OUTPUT, RunConfig
from rope_exp.launch import ranks
from rope_exp.launch.admit import acquire, acquire_or_refuse, admit, make_folder, resolved
from rope_exp.launch.as_rank import run_here
from rope_exp.launch.job import Job
from rope_exp.launch.leases import lease_gpus
from rope_exp.launch.ranks import POLL_SECONDS, SignalRelay
from rope_exp.launch.view import SweepView
from rope_exp.run.folder import LOG, describe_done
from rope_exp.system.console import keep_log, log
from rope_exp.system.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    ConfigError,
    RecordError,
)
from rope_exp.system.files import disk_full, free_bytes

WITHOUT_FRESH = "leave out run.fresh=true to resume: with it, the same command begins anew"
WAIT_SECONDS = 1.0  # between two checks of a run that another dispatcher holds


def dispatch(configs: Sequence[RunConfig], titles: Sequence[str]) -> tuple[int, list[Job]]:
    """Resolve, admit and complete every run.

    Args:
        configs: of the runs, as composed.
        titles: of the runs, shown to users.
    Returns:
        The exit code and the jobs. The code is that of a single run; for several runs, 0 if all
        are done, 75 if stopped, 1 if any failed.
    Raises:
        ConfigError, DataError, DiskError: before anything is written.
    """
    jobs = admit([resolved(config) for config in configs])
    for job, title in zip(jobs, titles, strict=True):
        job.title = title
        if job.exit_code is None:
            make_folder(job)
        # Every old result is moved aside now: if the sweep is stopped, none passes for a new one.
        if len(jobs) > 1 and job.config.run.fresh and acquire(job):
            job.unlock()
    return run_all(jobs) if len(jobs) > 1 else _run_one(jobs[0]), jobs


def _run_one(job: Job) -> int:
    """Run the only run of a command; its ranks write to the terminal."""
    if job.exit_code is None:
        acquire_or_refuse(job)
    if job.exit_code is not None:
        print(describe_done(job.folder))
        return job.exit_code

    if job.config.launch.inline:
        return run_here(job.config)

    if not _lease(job):
        log(f"{job.name}: every GPU is leased to another run; waiting for one")
    bring_to_end([job])
    if job.reason:
        keep_log(job.folder / LOG)
        log(f"error: {job.name}: {job.reason}")
    if job.status == "stopped" and job.config.run.fresh:
        log(WITHOUT_FRESH)
    return job.exit_code or EXIT_DONE


def run_all(
    jobs: Sequence[Job],
    on_poll: Callable[[], None] = lambda: None,
    deadline: float | None = None,
) -> int:
    """Run a sweep and return its exit code; ranks write to a log in each run's folder.

    Args:
        on_poll, deadline: see bring_to_end.
    """
    for job in jobs:
        job.log = job.folder / LOG
    with SweepView(jobs) as view:

        def poll() -> None:
            on_poll()
            view.refresh()

        bring_to_end(jobs, poll, deadline)
    return _sum_up(jobs)


def bring_to_end(
    jobs: Sequence[Job],
    on_poll: Callable[[], None] = lambda: None,
    deadline: float | None = None,
) -> None:
    """Start runs in their order, and poll them until all have ended.

    Args:
        on_poll: called after every poll of the runs.
        deadline: by the monotonic clock; then all ranks are asked to stop, with a checkpoint.
    """
    with SignalRelay(jobs) as relay:
        while any(job.exit_code is None for job in jobs):
            if deadline is not None and time.monotonic() > deadline and not relay.requested:
                relay.request()

            for job in jobs:
                if job.status == "running":
                    _collect(job)
            running = [job for job in jobs if job.status == "running"]
            for job in jobs:
                if job.status == "running" or job.exit_code is not None:
                    continue
                if relay.requested:
                    job.exit_code = EXIT_STOPPED
                elif _has_place(job, running):
                    _try_to_start(job, relay)
                    if job.status == "running":
                        running.append(job)
            on_poll()
            time.sleep(POLL_SECONDS)


def _has_place(job: Job, running: Sequence[Job]) -> bool:
    """Return whether a run may start: its max_parallel and those of running runs must allow it."""
    return len(running) < min(int(each.config.launch.max_parallel) for each in [job, *running])


def _try_to_start(job: Job, relay: SignalRelay) -> None:
    """Start a run, if a GPU is free and no other dispatcher is running it."""
    if time.monotonic() - job.seen_elsewhere < WAIT_SECONDS or not _lease(job):
        return
    try:
        if (job.lock >= 0 or acquire(job)) and job.exit_code is None:
            relay.start(job)
            return
    except (ConfigError, RecordError, OSError) as error:
        # Only this run fails; the others continue.
        job.fail(error)
        ranks.kill(job)
    job.release()


def _lease(job: Job) -> bool:
    """Lease the run's GPUs if they are free; return whether the run holds them."""
    leases = job.leases or lease_gpus(job.config)
    job.leases = leases or {}
    return leases is not None


def _collect(job: Job) -> None:
    """Check whether a run has ended; if so, release its lock and GPUs."""
    ranks.poll(job)
    if job.exit_code is None:
        return

    if job.log and job.status == "failed":
        if not job.reason:
            from rope_exp.plan.costs import checkpoint_bytes

            needed = checkpoint_bytes(job.config, job.vocab_size)
            if free_bytes(job.folder) < needed:
                job.reason = str(disk_full(job.folder, needed, "its checkpoint"))
        # The log may lie on the full disk.
        with contextlib.suppress(OSError), job.log.open("a", encoding="utf-8") as file:
            if job.reason:
                file.write(f"error: {job.reason}\n")
    job.release()


def _sum_up(jobs: Sequence[Job]) -> int:
    """Log failures and next steps for the user, and return the sweep's exit code."""
    failed = [job for job in jobs if job.status in ("failed", "diverged")]
    for job in failed:
        why = f": {job.reason.splitlines()[-1]}" if job.reason else ""
        log(f"{job.name}: {job.status} (exit code {job.exit_code}), see {job.log}{why}")

    if any(job.exit_code == EXIT_STOPPED for job in jobs):
        log("stopped; the same command resumes")
        if jobs[0].config.run.fresh:
            log(WITHOUT_FRESH)
        return EXIT_STOPPED

    for group in sorted({job.config.group for job in jobs if job.config.run.dir is None}):
        log(
            f"in {DEFAULT_OUTPUT / group}; its table: rope-exp report --group {group} "
            f"--out my/{group}"
        )
    return EXIT_FAILED if failed else EXIT_DONE
