"""Submission of runs to SLURM through submitit, as an array of jobs; `submit` does not wait.

A job is SLURM's: it trains some of the submitted runs on its node, by our dispatcher.
`launch=slurm_local` rehearses this on this machine, without a queue and without requeueing.
"""

import os
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rope_exp.compose import Composed, finalise, titles
from rope_exp.config import RunConfig
from rope_exp.errors import (
    EXIT_DIVERGED,
    EXIT_DONE,
    EXIT_STOPPED,
    ConfigError,
    first_line,
    run_command,
)
from rope_exp.files import read_json, write_json
from rope_exp.machine import output_of
from rope_exp.signals import on_signal, stop_signals_blocked
from rope_exp.sweep import DispatchedRun, check_folders, dispatch, drop_tracker_id

FOLDER = Path("results/slurm")
SWEEPS = FOLDER / "sweeps"
# The launchers of Hydra whose keys are a job's resources, and submitit's names of clusters.
CLUSTERS = {"SlurmLauncher": "slurm", "LocalLauncher": "local"}
# The choices of `launch`, by submitit's names of clusters.
CHOICES = {"slurm": "slurm", "local": "slurm_local"}
# Keys of Hydra's launcher that we decide.
OURS = ("_target_", "submitit_folder", "stderr_to_stdout", "max_num_timeout")


class Queue:
    """The jobs that were submitted for a campaign or a sweep, kept in a file of its folder.

    A name of a run is its key here: a campaign's cell, or a sweep's folder and config.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "jobs.json"

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The newest job of each run, by the run's name: its cluster and id."""
        return read_json(self._path) if self._path.exists() else {}

    def add(self, cluster: str, parts: Sequence[Sequence[str]], ids: Sequence[str]) -> None:
        """Keep the ids of jobs that were submitted; a run's newer job replaces its older one.

        Args:
            cluster: slurm, or local for submitit's stand-in.
            parts: the names of the runs of each job.
            ids: the id of each job.
        """
        jobs = self.jobs
        for part, job_id in zip(parts, ids, strict=True):
            for name in part:
                jobs[name] = [cluster, job_id]
        write_json(self._path, jobs)

    def active(self, names: Collection[str]) -> dict[str, str]:
        """Return `queued` or `running` for each of these runs whose job has not ended."""
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
        """Return a few words about the job of each of these runs, if it has one."""
        try:
            active = self.active(names)
            ended = "failed or stopped"
        except ChildProcessError as error:
            active = {}
            ended = f"submitted ({error})"
        descriptions = {}
        for name, (_, job_id) in self.jobs.items():
            if name in active:
                descriptions[name] = f"{active[name]}, job {job_id}"
            elif name in names:
                descriptions[name] = f"{ended}, see {self.folder / job_id}_0_log.out"
        return descriptions


def run_on_node(
    train: Callable[[Sequence[Any]], int], runs: Sequence[Any], max_restarts: int, gpus: str | None
) -> None:
    """Train some runs in a job; at its time limit or preempted, requeue it once they are saved.

    Args:
        train: trains the runs, and returns the exit code.
        runs: what `train` needs of each run.
        max_restarts: after so many restarts, the job is not requeued at its time limit.
        gpus: the submitting process's CUDA_VISIBLE_DEVICES; submitit's stand-in hides the GPUs.
            None: it was not set.
    Raises:
        ChildProcessError: a run failed or was stopped, so that SLURM shows a failed job.
    """
    is_at_time_limit = False

    def note_time_limit(*_: object) -> None:
        nonlocal is_at_time_limit
        is_at_time_limit = True
        os.kill(os.getpid(), signal.SIGTERM)

    import submitit

    job = submitit.JobEnvironment()
    if job.cluster == "local":
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if gpus is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    # In place of submitit's own handler, which requeues first and saves afterwards.
    signal.signal(signal.SIGUSR2, note_time_limit)
    # A signal ends the preparation of data, and the job can still requeue itself.
    on_signal(signal.default_int_handler)
    try:
        code = run_command(lambda: train(runs))
    except KeyboardInterrupt:
        code = EXIT_STOPPED
    on_signal(signal.SIG_IGN)
    if code == EXIT_STOPPED and job.cluster == "slurm":
        may_restart = int(os.environ.get("SLURM_RESTART_COUNT", "0")) < max_restarts
        should_requeue = is_at_time_limit and may_restart
        if not should_requeue:
            # SLURM does not requeue a preempted job that ends itself.
            shown = output_of("scontrol", "show", "job", job.job_id)
            should_requeue = re.search("PreemptTime=[0-9]", shown) is not None
        if should_requeue:
            output_of("scontrol", "requeue", job.job_id)
    if code not in (EXIT_DONE, EXIT_DIVERGED):
        raise ChildProcessError(f"ended with exit code {code}")


def submit(
    launcher: DictConfig,
    runs_per_job: int,
    queue: Queue,
    runs: Mapping[str, Any],
    train: Callable[[Sequence[Any]], int],
) -> str:
    """Submit the runs that are not in the queue.

    Args:
        launcher: Hydra's node, whose keys are a job's resources and limits.
        runs_per_job: how many runs a job trains.
        queue: of the campaign or the sweep; the new jobs are added.
        runs: what `train` needs of each run, by name.
        train: trains several of these in a job, and returns the exit code.

    Returns:
        A line that says what was submitted.
    Raises:
        ConfigError: a key of the launcher cannot be followed.
        ChildProcessError: the cluster refuses the jobs.
    """
    cluster = CLUSTERS.get(launcher["_target_"].rpartition(".")[2])
    if cluster is None:
        raise ConfigError("launch", ..., f"must be {' or '.join(CHOICES.values())}")
    parameters = _job_parameters(launcher, cluster)

    active = queue.active(runs)
    names = [name for name in runs if name not in active]
    waiting = f"; {len(active)} are queued or running" if active else ""
    if not names:
        return f"nothing to submit{waiting}"
    starts = range(0, len(names), runs_per_job)
    parts = [names[first : first + runs_per_job] for first in starts]
    max_restarts = launcher.get("max_num_timeout", 0)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")

    import submitit
    from submitit.core.utils import FailedJobError

    # A signal between submission and its record would lose the jobs.
    with stop_signals_blocked():
        try:
            executor = submitit.AutoExecutor(folder=queue.folder, cluster=cluster)
            executor.update_parameters(stderr_to_stdout=True, **parameters)
            with executor.batch():
                jobs = []
                for part in parts:
                    values = [runs[name] for name in part]
                    jobs.append(executor.submit(run_on_node, train, values, max_restarts, gpus))
        except (FailedJobError, OSError) as error:
            raise ChildProcessError(f"launch={CHOICES[cluster]}: {first_line(error)}") from None
        except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ConfigError("hydra.launcher", ..., first_line(error)) from None
        ids = [job.job_id for job in jobs]
        queue.add(cluster, parts, ids)
    arrays = ", ".join(dict.fromkeys(job_id.partition("_")[0] for job_id in ids))
    return f"submitted {len(names)} runs, jobs {arrays}{waiting}; logs in {queue.folder}"


def _job_parameters(launcher: DictConfig, cluster: str) -> dict[str, Any]:
    """Return the resources and limits of a job, by submitit's names."""
    for key in ("nodes", "tasks_per_node"):
        if launcher[key] != 1:
            reason = "must be 1: a job starts its own processes, on one node"
            raise ConfigError(f"hydra.launcher.{key}", launcher[key], reason)
    values: dict[str, Any] = {}
    for key in sorted({*map(str, launcher)} - {*OURS}):
        value = launcher[key]
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        if value is not None:
            values[key] = value
    if cluster == "slurm":
        # Some clusters requeue no job that does not ask for it.
        values["additional_parameters"] = {"requeue": True, **values["additional_parameters"]}

    # The keys that submitit shares between clusters; others are SLURM's own.
    plugin = import_module("hydra_plugins.hydra_submitit_launcher.config")
    shared = [field.name for field in fields(plugin.BaseQueueConf)]
    parameters = {}
    for key, value in values.items():
        name = key if key in shared else f"{cluster}_{key}"
        parameters[name] = value
    return parameters


# -- sweeps ----------------------------------------------------------------------------------------


def submit_sweep(composed: Composed) -> str:
    """Submit the runs of a sweep that have no result, and say what was submitted."""
    values = {}
    for name, run in _runs(composed).items():
        if run.exit_code is None:
            values[name] = (run.config.replace("launch", cells_per_job=1), run.title)
    runs_per_job = composed.configs[0].launch.cells_per_job
    return submit(composed.tree.hydra.launcher, runs_per_job, Queue(SWEEPS), values, run_configs)


def list_sweep(composed: Composed) -> str:
    """Return a line for each run of a sweep: its result, or the state of its job."""
    runs = _runs(composed)
    states = Queue(SWEEPS).describe(runs)
    states |= {name: run.status for name, run in runs.items() if run.exit_code is not None}
    return "\n".join(f"  {runs[name].title:40}  {states.get(name, 'left')}" for name in runs)


def _runs(composed: Composed) -> dict[str, DispatchedRun]:
    """Return the runs of a sweep by their names in the queue; those that are done have ended.

    Whatever a node would look up again is fixed: commits of the hub, initial weights, and the
    group, since the hash in a default group's name would change as a node resolves `auto`.
    """
    pinned = [finalise(config, resolves=False) for config in composed.configs]
    configs = [config.replace("run", group=config.group) for config in pinned]
    runs = list(map(DispatchedRun, configs, titles(composed.overrides, configs)))
    check_folders(runs)
    return {f"{run.folder} {run.config.config_sha256[:12]}": run for run in runs}


def run_configs(runs: Sequence[tuple[RunConfig, str]]) -> int:
    """Run the configs of one job, each with its title; return the exit code."""
    drop_tracker_id()
    configs, titles = zip(*runs, strict=True)
    code, dispatched = dispatch(configs, titles)
    # A run that diverged is done, even as the only run of a job.
    if all(run.status in ("finished", "diverged") for run in dispatched):
        return EXIT_DONE
    return code
