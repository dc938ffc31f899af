"""Running of a campaign: its cells run as a sweep, and each leaves a record to be committed.

A cell with a record is done, on every machine. A stopped run resumes from its checkpoints.
"""

import gzip
import math
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rope_exp.admit import admit, resolved
from rope_exp.campaign.progress import Progress
from rope_exp.comparable import differing_surroundings
from rope_exp.errors import EXIT_DONE, ConfigError, RecordError, log
from rope_exp.files import write_atomically
from rope_exp.jobs import Job
from rope_exp.provenance import git_state
from rope_exp.records import PACKED, read_record, stored_records, write_record
from rope_exp.sweep import run_all

LOOK_SECONDS = 2.0  # between two looks for records from other machines


def run_campaign(progress: Progress, deadline: float = math.inf) -> int:
    """Run the cells that have no record, and write one for each as it ends.

    Args:
        deadline: by the monotonic clock; then runs are asked to stop, with checkpoints.
    Returns:
        The exit code: 0 every cell has a record, 75 stopped, 1 some cell failed.
    Raises:
        ConfigError: this tree or this machine cannot run it.
        DataError, DiskError: there is no corpus, or not enough space.
    """
    for line in (*progress.notes(), progress.summary()):
        log(line)
    if not progress.left:
        return EXIT_DONE

    check_here(progress)
    configs = [resolved(cell.config) for cell in progress.left]
    jobs = admit(configs, [cell.name for cell in progress.left])
    looked = -math.inf

    def keep_records(ended: Sequence[Job]) -> None:
        """Write the records of runs that have ended, and read those from other machines."""
        nonlocal looked
        for job in ended:
            if job.status in ("finished", "diverged"):
                _record(progress, job)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            arrived = {path.stem for path in progress.folder.glob("*.json")}
            for job in jobs:
                if job.title in arrived and job.status in ("waiting", "elsewhere"):
                    _record(progress, job)

    # Runs may have been done before, and records may have arrived while data were prepared.
    keep_records(jobs)
    code = run_all(jobs, keep_records, deadline)
    log(progress.summary())
    for key, values in differing_surroundings(list(progress.done.values())).items():
        log(f"{progress.campaign.name}: records differ in {key}: {', '.join(values)}")
    return code if progress.left else EXIT_DONE


def check_here(progress: Progress) -> None:
    """Refuse uncommitted changes, and a Python version with another stdlib corpus."""
    campaign = progress.campaign
    git = git_state()
    if git is not None and git["dirty"]:
        reason = "its records name the commit that made them, and code here was changed since: "
        reason += "commit, or run it in a clean worktree (git worktree add)"
        raise ConfigError("campaign", campaign.name, reason)

    python = platform.python_version()
    is_read = any(cell.config.data.kind == "stdlib" for cell in progress.left)
    if is_read and campaign.python != python:
        reason = f"campaign {campaign.name} reads the library of Python {campaign.python}, and "
        raise ConfigError("python", python, f"{reason}other versions have another text")


def _record(progress: Progress, job: Job) -> None:
    """Write the record of a cell that is done, unless it has one; if that fails, the run fails."""
    if job.title in progress.done:
        return
    [cell] = [cell for cell in progress.campaign.cells if cell.name == job.title]
    path = progress.folder / f"{cell.name}.json"
    try:
        write_record(path, job.folder, cell.row, cell.factors, cell.test)
        progress.add(cell, read_record(path))
        job.exit_code = job.exit_code or EXIT_DONE
    except (ConfigError, RecordError, OSError) as error:
        job.fail(error)


def pack(records: Path, campaign: str) -> Path:
    """Put all records of a campaign into one file, and remove those that it had for each cell.

    Raises:
        ConfigError, RecordError: there is no record, or one cannot be read or does not verify;
            nothing is changed.
    """
    stored = stored_records(records, campaign)
    if not stored:
        raise ConfigError("--pack", ..., f"{records} holds no records of {campaign}")
    for path, content in stored.items():
        read_record(path, content)
    packed = records / f"{campaign}{PACKED}"
    # Without a time, the same records give the same bytes.
    write_atomically(packed, gzip.compress(b"".join(stored.values()), mtime=0))
    for path in (records / campaign).glob("*.json"):
        path.unlink()
    with suppress(OSError):
        (records / campaign).rmdir()
    return packed
