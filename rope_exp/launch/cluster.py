"""Submission of runs to SLURM through submitit, as an array of jobs; `submit` does not wait.

Each job runs some cells on its node by our dispatcher, as the same command there would. Ahead of
its time limit it saves a checkpoint and is requeued. `launch=slurm_local` does the same on this
machine, without a queue.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rope_exp.config.compose import Jobs, titles
from rope_exp.config.run import RunConfig
from rope_exp.launch.admit import resolved
from rope_exp.launch.sweep import dispatch
from rope_exp.run.folder import read_result
from rope_exp.system.errors import (
    EXIT_DIVERGED,
    EXIT_DONE,
    EXIT_STOPPED,
    ConfigError,
    explained,
    first_line,
)
from rope_exp.system.files import read_json, try_lock, write_json
from rope_exp.system.signals import interrupt, on_signal, starting_runs

FOLDER = Path("results/slurm")
SWEEPS = FOLDER / "sweeps"
# SLURM's usual limit of one array.
MAX_ARRAY = 1000
# The launchers of Hydra whose keys say what a job asks for, and submitit's names of clusters.
CLUSTERS = {"SlurmLauncher": "slurm", "LocalLauncher": "local"}
# Keys of Hydra's launcher that submitit shares between clusters; others are SLURM's own.
SHARED = ("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes")
# Keys of Hydra's launcher that we decide.
NOT_ASKED = ("_target_", "submitit_folder", "name", "stderr_to_stdout")
# Keys that name nodes of one kind, so that we need not look.
ONE_KIND = ("constraint", "nodelist", "gres")


@dataclass(frozen=True)
class Work:
    """What one job does on its node.

    Attributes:
        run: runs some cells, and returns an exit code.
        max_requeues: the number of time limits after which it is not requeued again.
    """

    run: Callable[[], int]
    max_requeues: int

    def __call__(self) -> None:
        """Run the cells; at the time limit or preempted, requeue this job once they are saved.

        Raises:
            ChildProcessError: some cell failed or was stopped; SLURM then shows a failed job.
        """
        at_limit = []

        def stop(number: int, frame: FrameType | None) -> None:
            at_limit.append(number)
            os.kill(os.getpid(), signal.SIGTERM)

        import submitit

        here = submitit.JobEnvironment()
        # In place of submitit's own handler, which requeues first and saves afterwards.
        signal.signal(here._usr_sig(), stop)
        code = explained(lambda: starting_runs(self.run))
        num_requeues = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        goes_on = bool(at_limit) and num_requeues < self.max_requeues
        if code == EXIT_STOPPED and (goes_on or _is_preempted()):
            here._requeue(self.max_requeues - num_requeues)
        if code not in (EXIT_DONE, EXIT_DIVERGED):
            raise ChildProcessError(f"ended with exit code {code}")


@dataclass(frozen=True)
class Cluster:
    """Where jobs are submitted, and what each asks for.

    Attributes:
        name: slurm, or local for submitit's stand-in.
        launcher: the keys of Hydra's launcher.
        cells_per_job: cells that one job runs, one after another or as the GPUs allow.
    """

    name: str
    launcher: Mapping[str, Any]
    cells_per_job: int

    @classmethod
    def of(cls, launcher: DictConfig, cells_per_job: int) -> "Cluster":
        """Return the cluster of a composed config.

        Raises:
            ConfigError: its launcher is none of submitit's.
        """
        name = CLUSTERS.get(launcher["_target_"].rpartition(".")[2])
        if name is None:
            raise ConfigError("launch", ..., "must be slurm or slurm_local")
        keys = [str(key) for key in launcher if key not in NOT_ASKED]
        asked: Any = OmegaConf.to_container(OmegaConf.masked_copy(launcher, keys))
        return cls(name, asked, cells_per_job)

    def submit(self, queue: "Queue", cells: Mapping[str, Any], work: Callable[..., Any]) -> str:
        """Submit the cells that are not in the queue, and say what was submitted.

        Args:
            cells: what `work` needs of each cell, by name.
            work: given several of these, returns the function that runs them.
        Raises:
            ConfigError: nodes of several kinds could run them, or a key is none of SLURM's.
            ChildProcessError: SLURM refuses a job; those before it are submitted.
        """
        with queue.alone():
            active = queue.active()
            names = [name for name in cells if name not in active]
            waiting = f"; {len(cells) - len(names)} are queued or running" if active else ""
            if not names:
                return f"nothing to submit{waiting}"
            if self.name == "slurm" and len(names) > 1:
                self._check_kinds()
            parts = [
                names[first : first + self.cells_per_job]
                for first in range(0, len(names), self.cells_per_job)
            ]
            limit = int(self.launcher.get("max_num_timeout", 0))
            works = [Work(work([cells[name] for name in part]), limit) for part in parts]
            ids: list[str] = []
            for first in range(0, len(works), MAX_ARRAY):
                ids += self._submit_array(queue.folder, works[first : first + MAX_ARRAY])
                queue.add(self.name, parts, ids)
        arrays = ", ".join(dict.fromkeys(each.partition("_")[0] for each in ids))
        count = f"{len(ids)} jobs" if len(ids) > 1 else "one job"
        return f"submitted {len(names)} runs as {count} ({arrays}){waiting}; logs in {queue.folder}"

    def _submit_array(self, folder: Path, works: Sequence[Work]) -> list[str]:
        """Submit one array, and return its jobs' ids."""
        import submitit
        from submitit.core.utils import FailedJobError

        given = {key: value for key, value in self.launcher.items() if value is not None}
        params = {
            key if key in SHARED else f"{self.name}_{key}": value
            for key, value in given.items()
            if key != "max_num_timeout"
        }
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster=self.name)
            executor.update_parameters(name=folder.name, stderr_to_stdout=True, **params)
            with executor.batch():
                jobs = [executor.submit(each) for each in works]
        except (FailedJobError, OSError) as error:
            raise ChildProcessError(f"launch={self.name}: {first_line(error)}") from None
        except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ConfigError("hydra.launcher", ..., first_line(error)) from None
        return [job.job_id for job in jobs]

    def _check_kinds(self) -> None:
        """Refuse nodes of several kinds: all runs of a seed come from one.

        Raises:
            ConfigError: naming the kinds.
            ChildProcessError: SLURM does not answer.
        """
        if any(self.launcher.get(key) for key in ONE_KIND):
            return
        partition = self.launcher.get("partition")
        asked = ["-p", str(partition)] if partition else []
        # The processors, memory, features and devices of each node.
        found = _slurm("sinfo", "--noheader", "-N", *asked, "-o", "%c CPUs, %m MB, %f, %G")
        kinds = sorted({line.strip() for line in found.splitlines()})
        if len(kinds) > 1:
            raise ConfigError(
                "hydra.launcher.constraint",
                None,
                f"must name nodes of one kind, since all runs of a seed come from one; there are "
                f"{'; '.join(kinds)}",
            )


def submit_sweep(jobs: Jobs) -> str:
    """Submit the runs of a sweep that have no result, and say what was submitted.

    Raises:
        ConfigError, ChildProcessError: see `Cluster.submit`.
    """
    launch = jobs.configs[0].launch
    runs = {
        str(config.folder): (config.replace("launch", cells_per_job=1), title)
        for config, title in _titled(jobs)
        if config.run.fresh or read_result(config.folder) is None
    }
    cluster = Cluster.of(jobs.tree.hydra.launcher, launch.cells_per_job)
    return cluster.submit(Queue(SWEEPS), runs, lambda part: partial(run_configs, part))


def list_sweep(jobs: Jobs) -> str:
    """Return a line for each run of a sweep: its result, or the state of its job."""
    submitted = Queue(SWEEPS).describe()
    lines = []
    for config, title in _titled(jobs):
        result = read_result(config.folder)
        said = result["status"] if result else submitted.get(str(config.folder), "left")
        lines.append(f"  {title:40}  {said}")
    return "\n".join(lines)


def _titled(jobs: Jobs) -> list[tuple[RunConfig, str]]:
    return list(zip(jobs.configs, titles(jobs.overrides, jobs.configs), strict=True))


def run_configs(runs: Sequence[tuple[RunConfig, str]]) -> int:
    """Run the configs of one job, each with its title; return the exit code."""
    on_signal(interrupt)
    configs, titles = zip(*runs, strict=True)
    return dispatch([resolved(config) for config in configs], titles)[0]


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
        added = [(part, job_id) for part, job_id in zip(parts, ids, strict=False)]
        new = {name: [cluster, job_id] for part, job_id in added for name in part}
        write_json(self._path, self.jobs | new)

    def active(self) -> dict[str, str]:
        """Return `queued` or `running` for each cell whose job has not ended.

        Raises:
            ChildProcessError: SLURM does not answer.
        """
        jobs = self.jobs
        states: dict[str, str] = {}
        if any(cluster == "slurm" for cluster, _ in jobs.values()):
            listed = _slurm("squeue", "--noheader", "--array", "--me", "--format=%i %T")
            states = dict(line.split() for line in listed.splitlines())
        found = {}
        for name, (cluster, job_id) in jobs.items():
            if cluster == "local" and _is_alive(job_id):
                found[name] = "running"
            elif cluster == "slurm" and job_id in states:
                found[name] = "queued" if states[job_id] == "PENDING" else "running"
        return found

    def describe(self) -> dict[str, str]:
        """Return a few words about each cell's job."""
        active = self.active()
        return {
            name: f"{active[name]}, job {job_id}"
            if name in active
            else f"failed or stopped, see {self.folder / job_id}_0_log.out"
            for name, (_, job_id) in self.jobs.items()
        }


def _is_preempted() -> bool:
    """Return whether SLURM stops this job for another: it does not requeue one that ends itself."""
    job_id = os.environ.get("SLURM_JOB_ID")
    found = job_id and _slurm("scontrol", "show", "job", job_id)
    return bool(found and re.search(r"PreemptTime=\d", found))


def _is_alive(job_id: str) -> bool:
    """Return whether a job of submitit's stand-in, which has the id of its process, still runs."""
    try:
        return b"submitit" in Path(f"/proc/{job_id}/cmdline").read_bytes()
    except OSError:
        return False


def _slurm(*words: str) -> str:
    """Return the output of one of SLURM's commands."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise ChildProcessError(f"{words[0]}: {first_line(error.stderr)}") from None
    except OSError as error:
        raise ChildProcessError(f"{words[0]}: {first_line(error)}") from None
