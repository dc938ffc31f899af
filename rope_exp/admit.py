"""Checks before a run starts, and acquisition of its folder.

`admit` checks every run before anything is written; `acquire` locks a folder, checks again and
writes the config.
"""

import functools
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rope_exp.config import DEFAULT_OUTPUT, FACTORS, RunConfig, TrainConfig, differing_keys
from rope_exp.errors import EXIT_CODES, ConfigError, log
from rope_exp.files import is_full, make_folders, try_lock
from rope_exp.folder import (
    CONFIG,
    LOCK,
    METRICS,
    last_step,
    list_steps,
    read_config,
    read_result,
    write_config,
)
from rope_exp.generated import open_data
from rope_exp.jobs import Job
from rope_exp.prepare import pin_revision
from rope_exp.ranks import POLL_SECONDS
from rope_exp.settle import resolve
from rope_exp.tokenizer import pin_tokenizer
from rope_exp.tracker import check_trackers

# File with the SLURM id of the job that began a folder anew with run.fresh=true.
FRESH = ".fresh"
LOCK_SECONDS = 5.0  # long enough for a process that was just killed to be gone


def resolved(config: RunConfig, world_size: int | None = None) -> RunConfig:
    """Return a config as it runs here, with nothing left to the machine or to time.

    Data and tokenizers of the hub are pinned to commits, initial weights to a hash, and `auto`
    keys are resolved. In a job that SLURM has requeued run.fresh is false, because its first start
    began anew.

    Args:
        world_size: of the launcher that started this process as one rank, perhaps with others on
            other machines; None: we start all ranks here.
    Raises:
        ConfigError: this machine cannot run it, or run.init_from is unsuitable.
        RecordError: the run at run.init_from is damaged.
        DataError: the hub does not tell the commit of a branch.
    """
    config = resolve(pinned_config(config), world_size)
    # Only now is the folder known: its default name has the hash of a resolved config.
    if config.run.fresh and _was_requeued(config.folder):
        config = config.replace("run", fresh=False)
    if config.pe.code is not None:
        # A mistake in a class of one's own ends here, before anything is written.
        from rope_exp.worker import certificate

        certificate(config.model, config.pe, config.attn, causal=config.causal)
    return config


def pinned_config(config: RunConfig) -> RunConfig:
    """Return a config with the commits of its data and tokenizer, and the hash of init_from."""
    data = pin_revision(config.data)
    pinned = replace(config, data=data, tokenizer=pin_tokenizer(config.tokenizer))
    if config.run.init_from is None:
        return pinned
    from rope_exp.origin import with_origin

    return with_origin(pinned)


def _was_requeued(folder: Path) -> bool:
    """Return whether SLURM has requeued this job, after its first start began the folder anew."""
    if os.environ.get("SLURM_RESTART_COUNT", "0") == "0" or not (folder / FRESH).exists():
        return False
    return (folder / FRESH).read_text(encoding="utf-8") == os.environ.get("SLURM_JOB_ID")


def admit(configs: Sequence[RunConfig]) -> list[Job]:
    """Check everything that can be checked before anything is written, and prepare the data.

    Args:
        configs: of the runs of one command, resolved for this machine.
    Returns:
        Their jobs; a run that is done already has its exit code.
    Raises:
        ConfigError: a run's folder or group does not allow it.
        DataError, DiskError: there is no corpus, or no space to prepare it.
    """
    for config in configs:
        if config.launch.cells_per_job > 1:
            allowed = "is for the jobs of `rope-exp campaign` and `rope-exp sweep` on a cluster"
            raise ConfigError("launch.cells_per_job", config.launch.cells_per_job, allowed)
    jobs = [Job(config) for config in configs]
    if len(jobs) > 1:
        check_together(jobs)

    for job in jobs:
        check_folder(job)

    # One run represents all runs of a group that may share a table.
    fresh = {job.folder for job in jobs if job.config.run.fresh}
    places = {folder.resolve() for folder in fresh}
    for job in jobs:
        origin = job.config.run.init_from
        if origin is not None and Path(origin).expanduser().resolve() in places:
            raise ConfigError("run.fresh", True, f"would move aside run.init_from={origin}")
    grouped = {(job.config.run.dir, job.config.group_sha256, job.config.group): job for job in jobs}
    for job in grouped.values():
        _check_group(job, leaving_out=fresh)

    check_trackers(job.config for job in jobs if job.exit_code is None)
    # Many runs read one corpus.
    open_once = functools.cache(open_data)
    for job in jobs:
        if job.exit_code is None:
            train = job.config.train
            data = open_once(job.config.data, job.config.tokenizer, seq_len=train.seq_len)
            _check_stages(train, data.num_train_tokens)
    return jobs


def make_folder(job: Job) -> None:
    """Make the run's folder.

    Raises:
        ConfigError: it cannot be made there.
        OSError: the disk is full.
    """
    try:
        make_folders(job.folder)
    except OSError as error:
        if is_full(error):
            raise
        raise _folder_error(job, f"cannot be made: {error.strerror}") from None


def acquire(job: Job) -> bool:
    """Acquire the lock of the run's folder, check the folder again, and write the run's config.

    With run.fresh an old folder is moved aside, never deleted. After an exception the lock may
    still be held; `Job.unlock` releases it.

    Returns:
        False if another process holds the lock. True otherwise; if the run proves to be done, the
        job has its exit code.
    """
    make_folder(job)
    lock = try_lock(job.folder / LOCK)
    if lock is None:
        job.seen_elsewhere = time.monotonic()
        return False

    job.lock = lock

    # Another command may have made or finished it since it was admitted.
    check_folder(job)
    if job.config.run.fresh and not job.is_begun and (job.folder / CONFIG).exists():
        number = 1
        while (aside := job.folder.with_name(f".{job.folder.name}.old-{number}")).exists():
            number += 1
        job.folder.rename(aside)
        job.unlock()
        return acquire(job)
    if job.exit_code is None:
        _begin(job)
        job.is_begun = True
    return True


def acquire_or_refuse(job: Job) -> None:
    """Acquire the folder of the only run of a command.

    Raises:
        ConfigError: another process is running it; nothing was changed.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while not acquire(job):
        if time.monotonic() > deadline:
            raise _folder_error(job, "another process is running this run; wait for it")
        time.sleep(POLL_SECONDS)


def check_together(jobs: Sequence[Job]) -> None:
    """Refuse runs that cannot share a sweep."""
    folders = set()
    for job in jobs:
        if job.config.launch.inline:
            raise ConfigError(
                "launch", "inline", "runs in this very process, and a sweep has several runs"
            )
        if job.folder.absolute() in folders:
            raise _folder_error(job, f"two runs of the sweep ({job.config.name}) would share it")
        folders.add(job.folder.absolute())


def check_folder(job: Job, *, settled: bool = True) -> None:
    """Refuse a folder of another config; set the job's exit code if the run is done.

    Args:
        settled: the config is resolved; else `auto` keys, which another machine will resolve, are
            not compared.
    """
    folder = job.folder
    if not folder.exists():
        return
    if not folder.is_dir():
        raise _folder_error(job, "is a file; a run needs a folder")
    # List once: another command may begin the run between two listings.
    names = {path.name for path in folder.iterdir()}
    if CONFIG not in names:
        # A start that was killed leaves these.
        if not names <= {LOCK, f".{CONFIG}.new"}:
            raise _folder_error(job, "holds files that are no run; choose another folder")
        return
    if job.config.run.fresh:
        return

    before = read_config(folder)
    differing = differing_keys(before.numeric, job.config.numeric)
    if not settled:
        differing = [each for each in differing if not each.endswith("-> auto")]
    if differing:
        is_edited = before.pe.code_sha256 != job.config.pe.code_sha256
        name = "give the changed file a pe.name of its own, " if is_edited else ""
        longer = f" (run.init_from={folder} there trains the weights further)"
        is_longer = before.train.num_steps < job.config.train.num_steps
        raise _folder_error(
            job,
            f"belongs to another config ({'; '.join(differing)}); {name}choose another run.dir "
            f"or run.group{longer if is_longer else ''}, or move it aside with run.fresh=true",
        )

    result = read_result(folder)
    if result is not None:
        job.exit_code = EXIT_CODES[result["status"]]
        return
    step = last_step(folder)
    if step > before.train.save_every and not list_steps(folder / "checkpoints"):
        raise _folder_error(
            job,
            f"has metrics up to step {step} and no checkpoint; "
            "restore its checkpoints/, or use run.fresh=true",
        )


def _check_group(job: Job, leaving_out: Collection[Path]) -> None:
    """Refuse a run that cannot share a table with the others of its group.

    Args:
        leaving_out: folders of the group to ignore.
    """
    config = job.config
    if config.run.dir is not None:
        return
    for path in sorted((DEFAULT_OUTPUT / config.group).glob(f"*/seed*/{CONFIG}")):
        if path.parent in leaving_out:
            continue
        other = read_config(path.parent)
        if other.group_sha256 != config.group_sha256:
            differing = differing_keys(other.numeric, config.numeric, FACTORS)
            raise ConfigError(
                "run.group",
                config.group,
                f"holds runs of another config ({'; '.join(differing)}); choose another name, "
                "or null",
            )
        return


def _check_stages(train: TrainConfig, num_tokens: int | None) -> None:
    """Refuse stages longer than the corpus; generated data have no end."""
    if num_tokens is not None and num_tokens <= train.longest:
        raise ConfigError(
            "train.stages",
            train.stages,
            f"a window needs {train.longest + 1} tokens and the corpus has {num_tokens} for train",
        )


def _begin(job: Job) -> None:
    """Prepare the folder for the ranks, which read its config."""
    config = job.config
    if not config.run.fresh:
        _check_group(job, leaving_out=[job.folder])

    # Without a checkpoint the run begins anew, and drops metrics from before the first save.
    if not list_steps(job.folder / "checkpoints"):
        if lost := last_step(job.folder):
            log(f"{job.name}: begins anew, since step {lost} came before any checkpoint")
        (job.folder / METRICS).unlink(missing_ok=True)

    # Later starts of the same run resume in this folder; only the first start is fresh.
    place = replace(config.run, fresh=False, dir=str(job.folder), group=config.group)
    write_config(job.folder, replace(config, run=place))
    if config.run.fresh and (job_id := os.environ.get("SLURM_JOB_ID")):
        (job.folder / FRESH).write_text(job_id, encoding="utf-8")


def _folder_error(job: Job, allowed: str) -> ConfigError:
    return ConfigError("run.dir", str(job.folder), allowed)
