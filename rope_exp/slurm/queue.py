"""The jobs that were submitted to a cluster, and what has become of them."""

from collections.abc import Collection, Sequence
from pathlib import Path

from rope_exp.files import read_json, write_json
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

    def add(self, cluster: str, parts: Sequence[Sequence[str]], ids: Sequence[str]) -> None:
        """Keep the ids of submitted jobs, each with its cells."""
        new = zip(parts, ids, strict=True)
        added = {name: [cluster, job_id] for part, job_id in new for name in part}
        write_json(self._path, self.jobs | added)

    def active(self, names: Collection[str]) -> dict[str, str]:
        """Return `queued` or `running` for each of these cells whose job has not ended."""
        jobs = {name: job for name, job in self.jobs.items() if name in names}
        states: dict[str, str] = {}
        if any(cluster == "slurm" for cluster, _ in jobs.values()):
            listed = output_of("squeue", "--noheader", "--array", "--me", "--format=%i %T")
            states = dict(line.split() for line in listed.splitlines())
        active = {}
        for name, (cluster, job_id) in jobs.items():
            # submitit's stand-in has the id of its process.
            command = Path(f"/proc/{job_id}/cmdline")
            if cluster == "local" and command.exists() and b"submitit" in command.read_bytes():
                active[name] = "running"
            elif job_id in states:
                active[name] = "queued" if states[job_id] == "PENDING" else "running"
        return active

    def describe(self, names: Collection[str]) -> dict[str, str]:
        """Return a few words about the job of each of these cells, if it has one."""
        try:
            active = self.active(names)
            ended = "failed or stopped"
        except ChildProcessError as error:
            active = {}
            ended = f"submitted ({error})"
        jobs = {name: job_id for name, (_, job_id) in self.jobs.items() if name in names}
        return {
            name: f"{active[name]}, job {job_id}"
            if name in active
            else f"{ended}, see {self.folder / job_id}_0_log.out"
            for name, job_id in jobs.items()
        }
