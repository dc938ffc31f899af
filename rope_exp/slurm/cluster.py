"""Submission of runs to SLURM through submitit, as an array of jobs; `submit` does not wait.

Each job runs some cells on its node by our dispatcher, as the same command there would. Ahead of
its time limit it saves a checkpoint and is requeued. `launch=slurm_local` rehearses this on this
machine, without a queue and without requeueing.
"""

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from rope_exp.admit import check_folder, check_together, pinned_config
from rope_exp.compose import Jobs, titles
from rope_exp.config import RunConfig
from rope_exp.errors import (
    EXIT_DIVERGED,
    EXIT_DONE,
    EXIT_STOPPED,
    ConfigError,
    explained,
    first_line,
)
from rope_exp.jobs import Job
from rope_exp.machine import output_of
from rope_exp.signals import held_back, interrupt, on_signal, starting_runs
from rope_exp.slurm.queue import Queue
from rope_exp.sweep import dispatch

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


@dataclass(frozen=True)
class Work:
    """The work of one job on its node.

    Attributes:
        run: runs some cells, and returns an exit code.
        max_restarts: after so many it is not requeued at its time limit.
        gpus: the GPUs that the submitting process may use; submitit's stand-in hides them.
    """

    run: Callable[[], int]
    max_restarts: int
    gpus: str | None

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
        if here.cluster == "local":
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            os.environ |= {"CUDA_VISIBLE_DEVICES": self.gpus} if self.gpus is not None else {}
        # In place of submitit's own handler, which requeues first and saves afterwards.
        signal.signal(here._usr_sig(), stop)
        code = explained(lambda: starting_runs(self.run))
        restarts_left = self.max_restarts - int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        goes_on = bool(at_limit) and restarts_left > 0
        if code == EXIT_STOPPED and (goes_on or _is_preempted()):
            here._requeue(restarts_left)
        if code not in (EXIT_DONE, EXIT_DIVERGED):
            raise ChildProcessError(f"ended with exit code {code}")


def _is_preempted() -> bool:
    """Return whether SLURM stops this job for another: it does not requeue one that ends itself."""
    job_id = os.environ.get("SLURM_JOB_ID")
    found = job_id and output_of("scontrol", "show", "job", job_id)
    return bool(found and re.search(r"PreemptTime=\d", found))


@dataclass(frozen=True)
class Cluster:
    """A target of submissions, and the resources of each job.

    Attributes:
        name: slurm, or local for submitit's stand-in.
        launcher: the keys of Hydra's launcher.
        cells_per_job: cells that one job runs, one after another or as the GPUs allow.
    """

    name: str
    launcher: Mapping[str, Any]
    cells_per_job: int

    @classmethod
    def of(cls, launcher: DictConfig, cells_per_job: int, words: Sequence[str]) -> "Cluster":
        """Return the cluster of a composed config.

        Args:
            words: the overrides by which it was composed.
        Raises:
            ConfigError: its launcher is none of submitit's, or asks for what a job of ours lacks.
        """
        name = CLUSTERS.get(launcher["_target_"].rpartition(".")[2])
        if name is None:
            raise ConfigError("launch", ..., "must be slurm or slurm_local")
        for word in words:
            key = word.lstrip("+").partition("=")[0]
            if key.removeprefix("hydra.launcher.") in NOT_ASKED or key == "hydra.sweep.dir":
                raise ConfigError(key, ..., f"is for Hydra's own way; jobs lie in {FOLDER}")
        ours = {str(key): launcher[key] for key in launcher if key not in NOT_ASKED}
        asked: Any = OmegaConf.to_container(OmegaConf.create(ours), resolve=True)
        for key in ("nodes", "tasks_per_node"):
            if asked.get(key) not in (None, 1):
                allowed = "must be 1: a job starts its own processes, on one node"
                raise ConfigError(f"hydra.launcher.{key}", asked[key], allowed)
        return cls(name, asked, cells_per_job)

    def submit(
        self,
        queue: Queue,
        cells: Mapping[str, Any],
        run: Callable[[Sequence[Any]], int],
        *,
        together: bool = True,
    ) -> str:
        """Submit the cells that are not in the queue, and say what was submitted.

        Args:
            cells: what `run` needs of each cell, by name.
            run: runs several of these in a job, and returns the exit code.
            together: the cells, or others that are done, are of one table.
        Raises:
            ConfigError: nodes of several kinds could run them, or a key is none of SLURM's.
            ChildProcessError: SLURM refuses a job; those before it are submitted.
        """
        with queue.alone():
            active = queue.active(cells)
            names = [name for name in cells if name not in active]
            waiting = f"; {len(cells) - len(names)} are queued or running" if active else ""
            if not names:
                return f"nothing to submit{waiting}"
            if self.name == "slurm" and together:
                self._check_kinds()
            parts = [
                names[first : first + self.cells_per_job]
                for first in range(0, len(names), self.cells_per_job)
            ]
            limit = int(self.launcher.get("max_num_timeout", 0))
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
            works = [
                Work(partial(run, [cells[name] for name in part]), limit, gpus) for part in parts
            ]
            ids: list[str] = []
            for first in range(0, len(works), MAX_ARRAY):
                array = slice(first, first + MAX_ARRAY)
                # A signal between the two would lose the jobs' ids.
                with held_back():
                    new = self._submit_array(queue.folder, works[array])
                    queue.add(self.name, parts[array], new)
                ids += new
        arrays = ", ".join(dict.fromkeys(each.partition("_")[0] for each in ids))
        count = f"{len(ids)} jobs" if len(ids) > 1 else "one job"
        return f"submitted {len(names)} runs as {count} ({arrays}){waiting}; logs in {queue.folder}"

    def _submit_array(self, folder: Path, works: Sequence[Work]) -> list[str]:
        """Submit one array, and return its jobs' ids."""
        import submitit
        from submitit.core.utils import FailedJobError

        given = {key: value for key, value in self.launcher.items() if value is not None}
        if self.name == "slurm":
            # Some clusters requeue no job that does not ask for it.
            more = {"requeue": True, **given.get("additional_parameters", {})}
            given |= {"additional_parameters": more}
            given.pop("max_num_timeout", None)
        params = {
            key if key in SHARED else f"{self.name}_{key}": value for key, value in given.items()
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
        constraint = str(self.launcher.get("constraint") or "|")
        if "|" not in constraint:
            return
        options = {"partition": "--partition", "nodelist": "--nodes"}
        asked = [
            f"{option}={self.launcher[key]}"
            for key, option in options.items()
            if self.launcher.get(key)
        ]
        # The partition, with * if it is the default, and a node's processors, memory, features
        # and devices.
        found = output_of("sinfo", "--noheader", "-N", *asked, "-o", "%P %c CPUs, %m MB, %f, %G")
        lines = [line.strip().partition(" ") for line in found.splitlines()]
        kinds = sorted({kind for name, _, kind in lines if asked or name.endswith("*")})
        if len(kinds) > 1:
            raise ConfigError(
                "hydra.launcher.constraint",
                None,
                f"must name nodes of one kind, since all runs of a seed come from one; there are "
                f"{'; '.join(kinds)}",
            )


class SweepRun(NamedTuple):
    """A run of a submitted sweep: its name in the queue, its config and its title."""

    key: str
    config: RunConfig
    title: str


def submit_sweep(jobs: Jobs, words: Sequence[str]) -> str:
    """Submit the runs of a sweep that have no result, and say what was submitted.

    Raises:
        ConfigError: a folder is of another config, or of two runs; see also `Cluster.submit`.
        ChildProcessError: SLURM refuses.
    """
    runs = _runs(jobs)
    done = _done(runs)
    cluster = Cluster.of(jobs.tree.hydra.launcher, runs[0].config.launch.cells_per_job, words)
    cells = {
        run.key: (run.config.replace("launch", cells_per_job=1), run.title)
        for run in runs
        if run.key not in done
    }
    return cluster.submit(Queue(SWEEPS), cells, run_configs, together=len(runs) > 1)


def list_sweep(jobs: Jobs) -> str:
    """Return a line for each run of a sweep: its result, or the state of its job."""
    runs = _runs(jobs)
    states = Queue(SWEEPS).describe([run.key for run in runs]) | _done(runs)
    return "\n".join(f"  {run.title:40}  {states.get(run.key, 'left')}" for run in runs)


def _runs(jobs: Jobs) -> list[SweepRun]:
    """Fix what a node would look up again: commits of the hub, initial weights, and the group.

    The hash in a default group's name would change as a node resolves `auto`.

    Raises:
        ConfigError, RecordError, DataError: see `resolved`.
    """
    pinned = map(pinned_config, jobs.configs)
    configs = [one.replace("run", group=one.group) for one in pinned]
    named = zip(configs, titles(jobs.overrides, configs), strict=True)
    return [
        SweepRun(f"{config.folder} {config.config_sha256[:12]}", config, title)
        for config, title in named
    ]


def _done(runs: Sequence[SweepRun]) -> dict[str, str]:
    """Return the status of each run that is done, by its key."""
    jobs = [Job(run.config) for run in runs]
    check_together(jobs)
    for job in jobs:
        check_folder(job, settled=False)
    ended = zip(runs, jobs, strict=True)
    return {run.key: job.status for run, job in ended if job.exit_code is not None}


def run_configs(runs: Sequence[tuple[RunConfig, str]]) -> int:
    """Run the configs of one job, each with its title; return the exit code."""
    on_signal(interrupt)
    configs, titles = zip(*runs, strict=True)
    code, jobs = dispatch(configs, titles)
    # A run that diverged is done, be it alone or not.
    return EXIT_DONE if all(job.status in ("finished", "diverged") for job in jobs) else code
