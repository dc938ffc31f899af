"""A campaign: its cells are run as a sweep is, and each leaves a record that is committed.

A cell with a record is done, on every machine. What was stopped goes on from its checkpoints.
"""

import platform
import statistics
import tarfile
import time
from collections.abc import Sequence
from datetime import timedelta
from io import BytesIO
from pathlib import Path

from rope_exp.config.campaign import Campaign, Cell
from rope_exp.config.resolve import operations
from rope_exp.evidence.comparable import differing_surroundings
from rope_exp.evidence.records import read_record, record_path, write_record
from rope_exp.evidence.runs import Run
from rope_exp.launch.admit import admit, make_folder, resolved
from rope_exp.launch.job import Job
from rope_exp.launch.sweep import LOG, bring_to_end, sum_up
from rope_exp.launch.view import SweepView
from rope_exp.run.provenance import git_state
from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, ConfigError, RecordError
from rope_exp.system.files import is_full, write_atomically

# How a run ended of which there is a result, and so a record.
DONE = ("finished", "diverged")


class Progress:
    """Which cells of a campaign have a record, and what the others will take.

    Args:
        records: the folder of all campaigns' records.
    Raises:
        RecordError: a record does not verify.
    """

    def __init__(self, campaign: Campaign, records: Path) -> None:
        self.campaign = campaign
        self.records = records
        self.done: dict[str, Run] = {}
        for cell in campaign.cells:
            path = self.path(cell)
            if path.exists():
                self.done[cell.name] = _matching(read_record(path), cell)

    def path(self, cell: Cell) -> Path:
        """Return where a cell's record lies."""
        return record_path(self.records, self.campaign.name, cell.name)

    @property
    def left(self) -> list[Cell]:
        """The cells without a record, in the order in which they are run."""
        return [cell for cell in self.campaign.cells if cell.name not in self.done]

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """Return what cells take, one after another, by what the recorded ones took."""
        finished = [run for run in self.done.values() if run.status == "finished"]
        rates = [run.result["wall_s"] / operations(run.config) for run in finished]
        if not rates:
            return None
        total = sum(operations(cell.config) for cell in cells)
        return float(statistics.median(rates)) * total

    def summary(self) -> str:
        """Say how far the campaign is, and what is left."""
        count = len(self.campaign.cells)
        words = f"{self.campaign.name}: {len(self.done)} of {count} cells have a record"
        if not self.left:
            return words

        spent = sum(run.result["wall_s"] for run in self.done.values())
        seconds = self.seconds(self.left)
        if seconds is None:
            return f"{words}; no estimate yet of the {len(self.left)} that are left"
        parallel = max(int(cell.config.launch.max_parallel) for cell in self.left)
        left = timedelta(seconds=round(seconds / parallel))
        return (
            f"{words}, {spent / 3600:.1f} hours of runs; {len(self.left)} are left, about {left} "
            f"with {parallel} at a time"
        )

    def lines(self) -> list[str]:
        """Return a line for each cell, and the summary."""
        width = max(len(cell.name) for cell in self.campaign.cells)
        lines = [self.campaign.about]
        for cell in self.campaign.cells:
            run = self.done.get(cell.name)
            words = "left"
            if run is not None:
                loss = "" if run.loss is None else f" {run.loss:.4f}"
                words = f"{run.status}{loss}, {run.result['wall_s']:.0f} s"
            lines.append(f"  {cell.name:{width}}  {words}")
        return [*lines, self.summary()]


def run_campaign(
    progress: Progress, hours: float | None = None, archive: Path | None = None
) -> int:
    """Run the cells that have no record, and write one for each as it ends.

    Args:
        hours: stop by then, with checkpoints; None: when all are done.
        archive: a folder, for <name>.tar of all records of the campaign.
    Returns:
        The exit code, as a sweep's: 0 all done, 75 stopped, 1 some cell failed.
    Raises:
        ConfigError: this tree or this machine cannot run it.
        DataError, DiskError: there is no corpus, or no room.
    """
    started = time.monotonic()
    campaign = progress.campaign
    cells = progress.left
    # Also the first test of whether it can be written.
    _archive(progress, archive)
    log(progress.summary())
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
            if job.status in DONE and cell.name not in progress.done:
                _record(progress, cell, job)
                _archive(progress, archive)

    deadline = None if hours is None else started + 3600 * hours
    with SweepView(jobs) as view:

        def on_poll() -> None:
            keep_records()
            view.refresh()

        bring_to_end(jobs, on_poll, deadline)
        # Those that were done before it began.
        keep_records()

    log(progress.summary())
    for key, values in differing_surroundings(list(progress.done.values())).items():
        log(f"{campaign.name}: records differ in {key}: {', '.join(values)}")
    return sum_up(jobs)


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


def _matching(run: Run, cell: Cell) -> Run:
    """Refuse a record of another config than its cell has today."""
    if run.config.config_sha256 != cell.config.config_sha256:
        raise ConfigError(
            f"{run.where}",
            ...,
            f"{run.folder} is a record of another config than the campaign's file gives this cell",
        )
    return run


def _record(progress: Progress, cell: Cell, job: Job) -> None:
    """Write a cell's record; where that fails its run has failed, and the others go on."""
    path = progress.path(cell)
    try:
        write_record(path, progress.campaign.name, cell, job.folder)
        progress.done[cell.name] = _matching(read_record(path), cell)
    except (ConfigError, RecordError, OSError) as error:
        job.exit_code = EXIT_FAILED if isinstance(error, OSError) else EXIT_USAGE
        job.reason = str(error)


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
