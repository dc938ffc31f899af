"""Running of a campaign: its cells run as a sweep, and each leaves a record to be committed.

A cell with a record is done, on every machine. A stopped run resumes from its checkpoints.
"""

import math
import platform
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rope_exp.admit import admit, make_folder, resolved
from rope_exp.campaign.cells import Campaign, Cell, load_campaign
from rope_exp.campaign.progress import Progress
from rope_exp.comparable import differing_surroundings
from rope_exp.compose import compose_jobs
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import EXIT_DONE, ConfigError, RecordError, log
from rope_exp.jobs import Job
from rope_exp.provenance import git_state
from rope_exp.records import write_record
from rope_exp.signals import interrupt, on_signal
from rope_exp.slurm.cluster import Cluster
from rope_exp.slurm.queue import Queue
from rope_exp.sweep import run_all

# Statuses of runs with a result, and therefore a record.
DONE = ("finished", "diverged")
# Statuses of runs that this command has not begun.
NOT_BEGUN = ("waiting", "elsewhere")
LOOK_SECONDS = 2.0  # between two looks for records from other machines
# Keys of `launch` about the jobs of a cluster.
OF_JOBS = ("launch.cells_per_job", "launch.runs_per_gpu")


def run_campaign(progress: Progress, deadline: float | None = None) -> int:
    """Run the cells that have no record, and write one for each as it ends.

    Args:
        deadline: by the monotonic clock; then runs are asked to stop, with checkpoints. None: run
            until all are done.
    Returns:
        The exit code: 0 every cell has a record, 75 stopped, 1 some cell failed.
    Raises:
        ConfigError: this tree or this machine cannot run it.
        DataError, DiskError: there is no corpus, or not enough space.
    """
    campaign = progress.campaign
    cells = progress.left
    for line in (*progress.notes(), progress.summary()):
        log(line)
    if not cells:
        return EXIT_DONE

    _check_here(campaign, cells)
    jobs = admit([resolved(cell.config) for cell in cells])
    for job, cell in zip(jobs, cells, strict=True):
        job.title = cell.name
        make_folder(job)

    looked = -math.inf

    def keep_records() -> None:
        nonlocal looked
        arrived: set[str] = set()
        if time.monotonic() - looked > LOOK_SECONDS:
            # Before the cells: what arrives meanwhile is seen the next time.
            arrived = {path.stem for path in progress.folder.glob("*.json")}
            looked = time.monotonic()
        for job, cell in zip(jobs, cells, strict=True):
            came = job.status in NOT_BEGUN and cell.name in arrived
            if came or job.status in DONE:
                _record(progress, cell, job)

    # Runs may have been done before, and records may have arrived while data were prepared.
    keep_records()
    code = run_all(jobs, keep_records, deadline)
    log(progress.summary())
    for key, values in differing_surroundings(list(progress.done.values())).items():
        log(f"{campaign.name}: records differ in {key}: {', '.join(values)}")
    return code if progress.left else EXIT_DONE


def run_cells(
    name: str,
    config_dir: Path | None,
    records: Path,
    runs_per_gpu: int,
    cells: Collection[str],
) -> int:
    """Run some cells of a campaign, as one job of a cluster does; see `run_campaign`."""
    on_signal(interrupt)
    campaign = load_campaign(name, config_dir, DEFAULT_OUTPUT)
    progress = Progress(campaign.with_launch(runs_per_gpu=runs_per_gpu), records)
    progress.only = cells
    return run_campaign(progress)


def submit_campaign(
    progress: Progress, words: Sequence[str], config_dir: Path | None, queue: Queue
) -> str:
    """Submit the cells without a record to a cluster, and say what was submitted.

    Args:
        words: overrides of the launcher.
        queue: of the campaign.
    Raises:
        ConfigError: a word is not about the launcher; see also `Cluster.submit`.
        ChildProcessError: SLURM refuses.
    """
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if not (key in ("launch", *OF_JOBS) or key.startswith("hydra.launcher.")):
            allowed = f"must be launch, {', '.join(OF_JOBS)} or hydra.launcher.*: the campaign's "
            raise ConfigError(key, ..., f"{allowed}file says everything else about its runs")
    jobs = compose_jobs(words, config_dir)
    launch = jobs.configs[0].launch
    cluster = Cluster.of(jobs.tree.hydra.launcher, launch.cells_per_job, words)
    campaign = progress.campaign
    _check_here(campaign, progress.left)
    if all(cell.config.launch.device == "cpu" for cell in progress.left):
        cluster = replace(cluster, launcher={**cluster.launcher, "gpus_per_node": None})
    places = (campaign.name, config_dir, progress.records)
    run = partial(run_cells, *places, launch.runs_per_gpu)
    return cluster.submit(queue, {cell.name: cell.name for cell in progress.left}, run)


def _check_here(campaign: Campaign, cells: Sequence[Cell]) -> None:
    """Refuse uncommitted changes, and a Python version with another stdlib corpus."""
    git = git_state()
    if git is not None and git["dirty"]:
        raise ConfigError(
            "campaign",
            campaign.name,
            "its records name the commit that made them, and code here was changed since: commit, "
            "or run it in a clean worktree (git worktree add)",
        )

    embedded = any(cell.config.data.kind == "stdlib" for cell in cells)
    here = platform.python_version()
    if embedded and campaign.python != here:
        raise ConfigError(
            "python",
            here,
            f"campaign {campaign.name} reads the library of Python {campaign.python}, and other "
            "versions have another text",
        )


def _record(progress: Progress, cell: Cell, job: Job) -> None:
    """Write the record of a cell that is done; if that fails, the run has failed.

    A record that arrived from another machine meanwhile is kept.
    """
    path = progress.path(cell)
    if cell.name in progress.done:
        return

    try:
        if not path.exists():
            write_record(path, progress.campaign.name, cell, job.folder)
        progress.read(cell)
        job.exit_code = job.exit_code or EXIT_DONE
    except (ConfigError, RecordError, OSError) as error:
        job.fail(error)
