"""A campaign: its cells are run as a sweep is, and each leaves a record that is committed.

A cell with a record is done, on every machine. What was stopped goes on from its checkpoints.
"""

import platform
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from rope_exp.config.campaign import Campaign, Cell
from rope_exp.evidence.comparable import differing_surroundings
from rope_exp.evidence.records import write_record
from rope_exp.launch.admit import admit, make_folder, resolved
from rope_exp.launch.job import Job
from rope_exp.launch.progress import Progress
from rope_exp.launch.sweep import bring_to_end, sum_up
from rope_exp.launch.view import SweepView
from rope_exp.run.folder import LOG
from rope_exp.run.provenance import git_state
from rope_exp.system.console import log
from rope_exp.system.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigError,
    RecordError,
    first_line,
)
from rope_exp.system.files import is_full, write_atomically

# How a run ended of which there is a result, and so a record.
DONE = ("finished", "diverged")
# How a run stands that this command has not begun.
NOT_BEGUN = ("waiting", "elsewhere")


def run_campaign(
    progress: Progress, deadline: float | None = None, archive: Path | None = None
) -> int:
    """Run the cells that have no record, and write one for each as it ends.

    Args:
        deadline: by the monotonic clock; begin to stop then, with checkpoints. None: stop when
            all are done.
        archive: a folder, for <name>.tar of all records of the campaign.
    Returns:
        The exit code: 0 every cell has a record, 75 stopped, 1 some cell failed.
    Raises:
        ConfigError: this tree or this machine cannot run it.
        DataError, DiskError: there is no corpus, or no room.
    """
    campaign = progress.campaign
    cells = progress.left
    # Also the first test of whether it can be written.
    _archive(progress, archive)
    for line in (*progress.notes(), progress.summary()):
        log(line)
    if not cells:
        return EXIT_DONE

    _check_here(campaign, cells)
    jobs = admit([resolved(cell.config) for cell in cells])
    for job, cell in zip(jobs, cells, strict=True):
        job.title = cell.name
        job.log = job.folder / LOG
        make_folder(job)

    def keep_records() -> None:
        for job, cell in zip(jobs, cells, strict=True):
            if cell.name not in progress.done and _has_record(progress, cell, job):
                _record(progress, cell, job)
                _archive_again(progress, archive)

    # Of runs that were done before, or that came while data were prepared.
    keep_records()
    with SweepView(jobs) as view:

        def on_poll() -> None:
            keep_records()
            view.refresh()

        bring_to_end(jobs, on_poll, deadline)

    log(progress.summary())
    for key, values in differing_surroundings(list(progress.done.values())).items():
        log(f"{campaign.name}: records differ in {key}: {', '.join(values)}")
    code = sum_up(jobs)
    return code if progress.left else EXIT_DONE


def _check_here(campaign: Campaign, cells: Sequence[Cell]) -> None:
    """Refuse a tree or a machine whose numbers would not be the campaign's."""
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


def _has_record(progress: Progress, cell: Cell, job: Job) -> bool:
    """Whether there is a record to be read or written: its run is done, here or elsewhere."""
    return job.status in DONE or (job.status in NOT_BEGUN and progress.path(cell).exists())


def _record(progress: Progress, cell: Cell, job: Job) -> None:
    """Write a cell's record; where that fails its run has failed, and the others go on.

    A record that another machine made, and that came here meanwhile, stays as it is.
    """
    path = progress.path(cell)
    try:
        if path.exists():
            log(f"{cell.name}: its record came from elsewhere, and stays")
        else:
            write_record(path, progress.campaign.name, cell, job.folder)
        progress.read(cell)
        job.exit_code = job.exit_code or EXIT_DONE
    except (ConfigError, RecordError, OSError) as error:
        job.exit_code = EXIT_FAILED if isinstance(error, OSError) else EXIT_USAGE
        job.reason = str(error)


def _archive_again(progress: Progress, folder: Path | None) -> None:
    """Pack the records anew; where that fails for now, the next record tries again."""
    try:
        _archive(progress, folder)
    except (ConfigError, OSError) as error:
        log(f"{progress.campaign.name}: not archived, until the next record: {first_line(error)}")


def _archive(progress: Progress, folder: Path | None) -> None:
    """Pack the campaign's records into one file, the same bytes for the same records."""
    if folder is None:
        return

    name = f"{progress.campaign.name}.tar"
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for cell in progress.campaign.cells:
            if cell.name in progress.done:
                content = progress.path(cell).read_bytes()
                entry = tarfile.TarInfo(f"{progress.campaign.name}/{cell.name}.json")
                entry.size = len(content)
                archive.addfile(entry, BytesIO(content))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, buffer.getvalue())
    except OSError as error:
        if is_full(error):
            raise
        raise ConfigError(
            "--archive", str(folder), f"cannot hold {name}: {error.strerror}"
        ) from None
