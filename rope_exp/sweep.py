"""The runs of a command: checks before they start, acquisition of folders, and the dispatcher."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rope_exp import ranks, worker
from rope_exp.compose import resolve
from rope_exp.config import DEFAULT_OUTPUT, FACTORS, RunConfig, differing_keys
from rope_exp.errors import (
    EXIT_CODES,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    ConfigError,
    RecordError,
    keep_log,
    log,
)
from rope_exp.files import DiskError, free_bytes, is_full, make_folders, try_lock
from rope_exp.folder import (
    CONFIG,
    LOCK,
    LOG,
    METRICS,
    describe_done,
    last_step,
    list_steps,
    read_config,
    read_result,
    write_config,
)
from rope_exp.identity import choices, chosen
from rope_exp.prepare import open_data, pin
from rope_exp.ranks import POLL_SECONDS, Job, SignalRelay, lease_gpus

LOCK_SECONDS = 5.0  # long enough for a process that was just killed to be gone
LOG_BYTES = 1 << 16  # below this, a log may lack its last words
# Between two attempts to start waiting runs, whose GPU or folder another dispatcher may release.
WAIT_SECONDS = 1.0


def as_it_runs(config: RunConfig, world_size: int | None = None) -> RunConfig:
    """Return a config as it runs here, with nothing left to the machine or to time.

    `world_size` is that of the launcher that started this process as a rank, if one did.
    """
    config = resolve(pinned_config(config), world_size)
    if config.pe.code is not None:
        # A mistake in a class of one's own ends here, before anything is written.
        worker.certificate(config.model, config.pe, config.attn, causal=config.causal)
    return config


def pinned_config(config: RunConfig) -> RunConfig:
    """Return a config with the commits of its data and tokenizer, and the hash of init_from."""
    data, tokenizer = pin(config.data, config.tokenizer)
    return with_origin(replace(config, data=data, tokenizer=tokenizer))


def with_origin(config: RunConfig) -> RunConfig:
    """Return a config with init_weights, the hash of the weights of run.init_from, if any."""
    if config.run.init_from is None:
        return config
    return chosen("init_from", "origin", "run.init_from").with_weights(config)


def admit(configs: Sequence[RunConfig], titles: Sequence[str] = ()) -> list[Job]:
    """Check the runs of a command, whose configs are resolved; prepare data, and make folders."""
    jobs = list(map(Job, configs, titles or [""] * len(configs)))
    if len(jobs) > 1:
        check_together(jobs)
    for job in jobs:
        cells = job.config.launch.cells_per_job
        if cells > 1:
            reason = "is for the jobs of `rope-exp campaign` and `rope-exp sweep` on a cluster"
            raise ConfigError("launch.cells_per_job", cells, reason)
        check_folder(job)

    # One run represents all runs of a group that may share a table.
    grouped = [config for config in configs if config.run.dir is None]
    for config in {(config.group_sha256, config.group): config for config in grouped}.values():
        _check_group(config)

    left = [job for job in jobs if job.exit_code is None]
    for tracker in {job.config.tracker for job in left}:
        if tracker.name != "none":
            leaf = chosen("trackers", tracker.name, "tracker.name", core="none")
            leaf.Tracker.check(tracker)
    # Many runs read one corpus.
    open_once = functools.cache(open_data)
    for job in left:
        train = job.config.train
        data = open_once(job.config.data, job.config.tokenizer, seq_len=train.seq_len)
        # Generated data have no end.
        if data.num_train_tokens is not None and data.num_train_tokens <= train.longest:
            reason = f"a window needs {train.longest + 1} tokens and the corpus has "
            reason += f"{data.num_train_tokens} for train"
            raise ConfigError("train.stages", train.stages, reason)
    for job in left:
        try:
            make_folders(job.folder)
        except OSError as error:
            if is_full(error):
                raise
            raise _folder_error(job, f"cannot be made: {error.strerror}") from None
    return jobs


def check_together(jobs: Sequence[Job]) -> None:
    """Refuse runs that cannot share a sweep."""
    folders = set()
    for job in jobs:
        if job.folder.absolute() in folders:
            raise _folder_error(job, f"two runs of the sweep ({job.config.name}) would share it")
        folders.add(job.folder.absolute())


def check_folder(job: Job) -> None:
    """Refuse a folder of another config; set the job's exit code if the run is done."""
    folder = job.folder
    if not folder.exists():
        return
    # List once: another command may begin the run between two listings.
    names = {path.name for path in folder.iterdir()}
    if CONFIG not in names:
        # A start that was killed leaves these.
        if not names <= {LOCK, f".{CONFIG}.new"}:
            raise _folder_error(job, "holds files that are no run; choose another folder")
        return

    before = read_config(folder)
    keys = ("precision", "compile", "deterministic")
    # A node of a cluster resolves these later.
    later = [f"train.{key}" for key in keys if getattr(job.config.train, key) == "auto"]
    changes = differing_keys(before.numeric, job.config.numeric, later)
    if changes:
        reason = f"belongs to another config ({'; '.join(changes)}); choose another run.dir or "
        raise _folder_error(job, f"{reason}run.group, or move the folder away")

    result = read_result(folder)
    if result is not None:
        job.exit_code = EXIT_CODES[result["status"]]
        return
    step = last_step(folder)
    if step > before.train.save_every and not list_steps(folder / "checkpoints"):
        reason = f"has metrics up to step {step} and no checkpoint; restore its checkpoints/"
        raise _folder_error(job, f"{reason}, or move the folder away to begin anew")


def _check_group(config: RunConfig) -> None:
    """Refuse a run that cannot share a table with the others of its group."""
    # These can share one, so the first represents them.
    for path in sorted((DEFAULT_OUTPUT / config.group).glob(f"*/seed*/{CONFIG}"))[:1]:
        other = read_config(path.parent)
        if other.group_sha256 != config.group_sha256:
            changes = "; ".join(differing_keys(other.numeric, config.numeric, FACTORS))
            reason = f"holds runs of another config ({changes}); choose another name, or null"
            raise ConfigError("run.group", config.group, reason)


# -- acquisition -----------------------------------------------------------------------------------


def acquire(job: Job) -> bool:
    """Acquire the lock of the run's folder, check the folder again, and write the run's config.

    Returns:
        False if another process holds the lock; true otherwise, even if the run proves to be done.
    """
    make_folders(job.folder)
    lock = try_lock(job.folder / LOCK)
    if lock is None:
        return False
    job.lock = lock

    # Another command may have begun or finished runs since this one was admitted.
    check_folder(job)
    if job.exit_code is not None:
        return True
    config = job.config
    if config.run.dir is None:
        _check_group(config)

    # Without a checkpoint the run begins anew, and drops metrics from before the first save.
    if not list_steps(job.folder / "checkpoints"):
        if lost := last_step(job.folder):
            log(f"{job.name}: begins anew, since step {lost} came before any checkpoint")
        (job.folder / METRICS).unlink(missing_ok=True)

    write_config(job.folder, config.replace("run", dir=str(job.folder), group=config.group))
    return True


def acquire_or_refuse(job: Job) -> None:
    """Acquire the folder of the only run of a command; refuse one that another process runs."""
    deadline = time.monotonic() + LOCK_SECONDS
    while job.exit_code is None and not acquire(job):
        if time.monotonic() > deadline:
            raise _folder_error(job, "another process is running this run; wait for it")
        time.sleep(POLL_SECONDS)
    if job.exit_code is not None:
        print(describe_done(job.folder))


def _folder_error(job: Job, reason: str) -> ConfigError:
    return ConfigError("run.dir", str(job.folder), reason)


# -- the dispatcher --------------------------------------------------------------------------------


def dispatch(configs: Sequence[RunConfig], titles: Sequence[str]) -> tuple[int, list[Job]]:
    """Resolve, admit and complete every run; return the exit code, of a sweep 0, 1 or 75."""
    jobs = admit([as_it_runs(config) for config in configs], titles)
    return (run_all(jobs) if len(jobs) > 1 else _run_one(jobs[0])), jobs


def _run_one(job: Job) -> int:
    """Run the only run of a command; its ranks write to the terminal."""
    acquire_or_refuse(job)
    if job.exit_code is not None:
        return job.exit_code
    if not lease_gpus(job):
        log(f"{job.name}: every GPU is leased to another run; waiting for one")
    bring_to_end([job])
    if job.reason:
        keep_log(job.folder / LOG)
        log(f"error: {job.name}: {job.reason}")
    return EXIT_STOPPED if job.exit_code is None else job.exit_code


def run_all(
    jobs: Sequence[Job], on_end: Callable[[Sequence[Job]], None] = lambda ended: None
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
    jobs: Sequence[Job], on_poll: Sequence[Callable[[Sequence[Job]], None]] = ()
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
            job.reason = str(DiskError(job.folder, LOG_BYTES, "its log"))
        elif job.reason:
            with contextlib.suppress(OSError), job.log.open("a") as file:
                file.write(f"error: {job.reason}\n")
    job.unlock()
    job.release_gpus()


def _start_waiting(jobs: Sequence[Job], relay: SignalRelay) -> None:
    """Start waiting runs while GPUs are free and every run's max_parallel allows it."""
    running = [job for job in jobs if job.status == "running"]
    for job in jobs:
        limit = min(int(other.config.launch.max_parallel) for other in [job, *running])
        if job.status != "waiting" or len(running) >= limit or not lease_gpus(job):
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
