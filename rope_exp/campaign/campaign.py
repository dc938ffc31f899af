"""A campaign's progress and its runs, each of which leaves a record to be committed.

A cell with a record is done, on every machine. A stopped run resumes from its checkpoints.
"""

import gzip
import platform
import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

from rope_exp.campaign.cells import Campaign, Cell
from rope_exp.campaign.records import (
    PACKED,
    old_cell_name,
    read_record,
    stored_records,
    write_record,
)
from rope_exp.compose import finalise, runs_at_a_time
from rope_exp.config import RunConfig, differing_keys
from rope_exp.errors import EXIT_DONE, ConfigError, RunFolderError, log
from rope_exp.files import write_atomically
from rope_exp.folder import Run, last_step
from rope_exp.machine import git_state
from rope_exp.sweep import DispatchedRun, admit, run_all

# Keys that a record must share with its cell, in addition to those that can change a number:
# rounding depends on the threads, and a record contains the probes' results.
SHARED = ("launch.num_threads", "train.probes")


class Progress:
    """The records of a campaign's cells, and the cells that are left.

    Args:
        campaign: the cells, in the order of their runs.
        records: the folder that holds the records of all campaigns.
        only: the names of the cells that this command may run. None: all.
    """

    def __init__(
        self, campaign: Campaign, records: Path, only: Collection[str] | None = None
    ) -> None:
        self.campaign = campaign
        self.records = records
        self.folder = records / campaign.name
        self.done: dict[str, Run] = {}
        self._only = only
        stored = stored_records(records, campaign.name)
        paths = {path.stem: path for path in stored}
        for cell in campaign.cells:
            old_name = old_cell_name(cell.row, cell.factors)
            path = paths.pop(cell.name, None) or paths.pop(old_name, None)
            if path is not None:
                self.add(cell, read_record(path, stored[path]))
        self._strangers = sorted(paths)

    def add(self, cell: Cell, run: Run) -> None:
        """Mark a cell as done; refuse a record of another config."""
        differing = differing_keys(_shared_values(run.config), _shared_values(cell.config))
        if differing:
            reason = f"{run.folder} is a record of another config than the campaign's file gives "
            raise ConfigError(run.where, ..., f"{reason}this cell ({'; '.join(differing)})")
        self.done[cell.name] = run

    @property
    def left(self) -> list[Cell]:
        """The cells that this command is to run, without a record, in the order of their runs."""
        left = [cell for cell in self.campaign.cells if cell.name not in self.done]
        return [cell for cell in left if self._only is None or cell.name in self._only]

    def notes(self) -> list[str]:
        """Return notes on records that belong to no cell, and on cells that diverged."""
        notes = {
            f"{self.folder} holds records of no cell, which reports read": self._strangers,
            f"{self.campaign.name}: diverged, and so done": [
                name for name, run in self.done.items() if run.status == "diverged"
            ],
        }
        return [f"{note}: {', '.join(names)}" for note, names in notes.items() if names]

    def summary(self) -> str:
        """Summarize the progress; a run takes as long as its operations do at the median speed."""
        count = len(self.campaign.cells)
        text = f"{self.campaign.name}: {len(self.done)} of {count} cells have a record"
        finished = [run for run in self.done.values() if run.status == "finished"]
        if not (self.left and finished):
            return text

        from rope_exp.costs import operations

        pace = statistics.median(run.result["wall_s"] / operations(run.config) for run in finished)
        seconds = pace * sum(operations(cell.config) for cell in self.left)
        parallel = max(runs_at_a_time(cell.config.launch) for cell in self.left)
        left = timedelta(seconds=round(seconds / parallel))
        return f"{text}; {len(self.left)} are left, about {left} with {parallel} at a time"

    def lines(self, submitted: Mapping[str, str]) -> list[str]:
        """Return a line for each cell; `submitted` has texts about cells that wait in a queue."""
        width = max(len(cell.name) for cell in self.campaign.cells)
        lines = [self.campaign.about]
        for cell in self.campaign.cells:
            run = self.done.get(cell.name)
            if run is not None:
                loss = "" if run.loss is None else f" {run.loss:.4f}"
                state = f"{run.status}{loss}, {run.result['wall_s']:.0f} s"
            else:
                state = submitted.get(cell.name, "left")
                step = last_step(cell.config.folder)
                if step:
                    state += f"; begun here, step {step:,} of {cell.config.train.num_steps:,}"
            lines.append(f"  {cell.name:{width}}  {state}")
        return [*lines, *self.notes(), self.summary()]


def _shared_values(config: RunConfig) -> dict[str, Any]:
    """Return the values of a config that a record must share with its cell."""
    return config.affecting_values | {key: attrgetter(key)(config) for key in SHARED}


def run_campaign(progress: Progress) -> int:
    """Run the cells that have no record, and write one for each as it ends."""
    for line in (*progress.notes(), progress.summary()):
        log(line)
    if not progress.left:
        return EXIT_DONE

    check_here(progress)
    cells = {cell.name: cell for cell in progress.left}
    runs = admit([finalise(cell.config) for cell in cells.values()], list(cells))

    def keep_records(ended: Sequence[DispatchedRun]) -> None:
        """Write records, or keep those that arrived meanwhile; if that fails, the run fails."""
        for run in ended:
            if run.status not in ("finished", "diverged"):
                continue
            cell = cells[run.title]
            path = progress.folder / f"{cell.name}.json"
            try:
                progress.add(cell, write_record(path, run.folder, cell.row, cell.factors))
            except (ConfigError, RunFolderError, OSError) as error:
                run.fail(error)

    # Some runs may have been done before.
    keep_records(runs)
    code = run_all(runs, keep_records)
    log(progress.summary())
    return code if progress.left else EXIT_DONE


def check_here(progress: Progress) -> None:
    """Refuse uncommitted changes, and a Python version with another stdlib corpus."""
    campaign = progress.campaign
    if (git_state(campaign.config_dir) or {}).get("dirty"):
        reason = "its records name the commit that made them, and code here was changed since: "
        reason += "commit, or run it in a clean worktree (git worktree add)"
        raise ConfigError("campaign", campaign.name, reason)

    python = platform.python_version()
    reads_library = any(cell.config.data.kind == "stdlib" for cell in progress.left)
    if reads_library and campaign.python != python:
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
    # A record that another process wrote meanwhile stays, until the next time.
    are_packed = set(stored.values())
    for path in (records / campaign).glob("*.json"):
        if path.read_bytes() in are_packed:
            path.unlink()
    with suppress(OSError):
        (records / campaign).rmdir()
    return packed
