"""The jobs that were submitted to a cluster, and what has become of them."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rope_exp.errors import ConfigError
from rope_exp.files import read_json, try_lock, write_json
from rope_exp.machine import output_of


class Queue:
    """The jobs that were submitted for a campaign or a sweep, kept in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "jobs.json"

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The newest job of each cell: its cluster and id."""
        return read_json(self._path) if self._path.exists() else {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one command submit at a time; raise ConfigError if another does now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = try_lock(self.folder / ".lock")
        if lock is None:
            raise ConfigError("launch", ..., f"another command submits to {self.folder} now")
        try:
            yield
        finally:
            os.close(lock)

    def add(self, cluster: str, parts: Sequence[Sequence[str]], ids: Sequence[str]) -> None:
        """Keep the ids of submitted jobs, each with its cells."""
        added = zip(parts, ids, strict=True)
        new = {name: [cluster, job_id] for part, job_id in added for name in part}
        write_json(self._path, self.jobs | new)

    def active(self, names: Collection[str]) -> dict[str, str]:
        """Return `queued` or `running` for each of these cells whose job has not ended.

        Raises:
            ChildProcessError: SLURM does not answer.
        """
        jobs = {name: job for name, job in self.jobs.items() if name in names}
        states: dict[str, str] = {}
        if any(cluster == "slurm" for cluster, _ in jobs.values()):
            listed = output_of("squeue", "--noheader", "--array", "--me", "--format=%i %T")
            states = dict(line.split() for line in listed.splitlines())
        found = {}
        for name, (cluster, job_id) in jobs.items():
            if cluster == "local" and _is_alive(job_id):
                found[name] = "running"
            elif cluster == "slurm" and job_id in states:
                found[name] = "queued" if states[job_id] == "PENDING" else "running"
        return found

    def describe(self, names: Collection[str]) -> dict[str, str]:
        """Return a few words about the job of each of these cells, if it has one."""
        try:
            active = self.active(names)
            ended = "failed or stopped"
        except ChildProcessError as error:
            active = {}
            ended = f"submitted ({error})"
        return {
            name: f"{active[name]}, job {job_id}"
            if name in active
            else f"{ended}, see {self.folder / job_id}_0_log.out"
            for name, (_, job_id) in self.jobs.items()
            if name in names
        }


def _is_alive(job_id: str) -> bool:
    """Return whether a job of submitit's stand-in, which has the id of its process, still runs."""
    try:
        return b"submitit" in Path(f"/proc/{job_id}/cmdline").read_bytes()
    except OSError:
        return False
