"""Running of a campaign: its cells run as a sweep, and each leaves a record to be committed.

A cell with a record is done, on every machine. A stopped run resumes from its checkpoints.
"""

import gzip
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rope_exp.campaign.progress import Progress
from rope_exp.campaign.records import PACKED, read_record, stored_records, write_record
from rope_exp.comparable import differing_surroundings
from rope_exp.errors import EXIT_DONE, ConfigError, RecordError, log
from rope_exp.files import write_atomically
from rope_exp.machine import git_state
from rope_exp.ranks import Job
from rope_exp.sweep import admit, resolved, run_all


def run_campaign(progress: Progress) -> int:
    """Run the cells that have no record, and write one for each as it ends."""
    for line in (*progress.notes(), progress.summary()):
        log(line)
    if not progress.left:
        return EXIT_DONE

    check_here(progress)
    cells = {cell.name: cell for cell in progress.left}
    jobs = admit([resolved(cell.config) for cell in cells.values()], list(cells))

    def keep_records(ended: Sequence[Job]) -> None:
        """Write records, or keep those that arrived meanwhile; if that fails, the run fails."""
        for job in ended:
            if job.status in ("finished", "diverged"):
                cell = cells[job.title]
                path = progress.folder / f"{cell.name}.json"
                try:
                    write_record(path, job.folder, cell.row, cell.factors, cell.test)
                    progress.add(cell, read_record(path))
                except (ConfigError, RecordError, OSError) as error:
                    job.fail(error)

    # Some runs may have been done before.
    keep_records(jobs)
    code = run_all(jobs, keep_records)
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


def pack(records: Path, campaign: str) -> Path:
    """Verify all records of a campaign, and put them into one file in place of one a cell."""
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
