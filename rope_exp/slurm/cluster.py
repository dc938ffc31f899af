"""Submission of runs to SLURM through submitit, as an array of jobs; `submit` does not wait.

Each job runs some cells on its node by our dispatcher. `launch=slurm_local` rehearses this on this
machine, without a queue and without requeueing.
"""

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

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
from rope_exp.machine import output_of
from rope_exp.ranks import Job
from rope_exp.signals import held_back, interrupt, on_signal, starting_runs
from rope_exp.slurm.queue import Queue
from rope_exp.sweep import dispatch

FOLDER = Path("results/slurm")
SWEEPS = FOLDER / "sweeps"
# The launchers of Hydra whose keys say what a job asks for, and submitit's names of clusters.
CLUSTERS = {"SlurmLauncher": "slurm", "LocalLauncher": "local"}
# Keys of Hydra's launcher that we decide.
OURS = ("_target_", "submitit_folder", "stderr_to_stdout", "max_num_timeout")


def run_on_node(
    run: Callable[[Sequence[Any]], int], cells: Sequence[Any], max_restarts: int, gpus: str | None
) -> None:
    """Run some cells in a job; at its time limit or preempted, requeue it once they are saved.

    Args:
        max_restarts: after so many the job is not requeued at its time limit.
        gpus: the submitting process's CUDA_VISIBLE_DEVICES; submitit's stand-in hides the GPUs.
    """
    at_limit = []

    def stop(*_: object) -> None:
        at_limit.append(True)
        os.kill(os.getpid(), signal.SIGTERM)

    import submitit

    job = submitit.JobEnvironment()
    if job.cluster == "local":
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ |= {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    # In place of submitit's own handler, which requeues first and saves afterwards.
    signal.signal(signal.SIGUSR2, stop)
    code = explained(lambda: starting_runs(lambda: run(cells)))
    if code == EXIT_STOPPED and job.cluster == "slurm":
        may_restart = int(os.environ.get("SLURM_RESTART_COUNT", "0")) < max_restarts
        # SLURM does not requeue a preempted job that ends itself.
        is_requeued = at_limit and may_restart
        if not is_requeued:
            shown = output_of("scontrol", "show", "job", job.job_id)
            is_requeued = re.search("PreemptTime=[0-9]", shown) is not None
        if is_requeued:
            output_of("scontrol", "requeue", job.job_id)
    if code not in (EXIT_DONE, EXIT_DIVERGED):
        # SLURM then shows a failed job.
        raise ChildProcessError(f"ended with exit code {code}")


def submit(
    launcher: DictConfig,
    cells_per_job: int,
    queue: Queue,
    cells: Mapping[str, Any],
    run: Callable[[Sequence[Any]], int],
) -> str:
    """Submit the cells that are not in the queue, and say what was submitted.

    Args:
        cells: what `run` needs of each cell, by name.
        run: runs several of these in a job, and returns the exit code.
    """
    cluster = CLUSTERS.get(launcher["_target_"].rpartition(".")[2])
    if cluster is None:
        raise ConfigError("launch", ..., "must be slurm or slurm_local")
    for key in ("nodes", "tasks_per_node"):
        if launcher[key] != 1:
            reason = "must be 1: a job starts its own processes, on one node"
            raise ConfigError(f"hydra.launcher.{key}", launcher[key], reason)
    keys: Any = OmegaConf.to_container(launcher, resolve=True)
    max_restarts = keys.get("max_num_timeout", 0)
    if cluster == "slurm":
        # Some clusters requeue no job that does not ask for it.
        keys["additional_parameters"] = {"requeue": True, **keys["additional_parameters"]}
    asked = {key: keys[key] for key in keys if key not in OURS and keys[key] is not None}

    active = queue.active(cells)
    names = [name for name in cells if name not in active]
    waiting = f"; {len(active)} are queued or running" if active else ""
    if not names:
        return f"nothing to submit{waiting}"
    starts = range(0, len(names), cells_per_job)
    parts = [names[first : first + cells_per_job] for first in starts]
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")

    import submitit
    from submitit.core.utils import FailedJobError

    # The keys that submitit shares between clusters; others are SLURM's own.
    plugin = import_module("hydra_plugins.hydra_submitit_launcher.config")
    shared = [field.name for field in fields(plugin.BaseQueueConf)]
    # A signal between submission and its record would lose the jobs.
    with held_back():
        try:
            executor = submitit.AutoExecutor(folder=queue.folder, cluster=cluster)
            executor.update_parameters(
                stderr_to_stdout=True,
                **{key if key in shared else f"{cluster}_{key}": asked[key] for key in asked},
            )
            with executor.batch():
                jobs = [
                    executor.submit(run_on_node, run, [*map(cells.get, part)], max_restarts, gpus)
                    for part in parts
                ]
        except (FailedJobError, OSError) as error:
            raise ChildProcessError(f"launch={cluster}: {first_line(error)}") from None
        except (NameError, TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise ConfigError("hydra.launcher", ..., first_line(error)) from None
        ids = [job.job_id for job in jobs]
        queue.add(cluster, parts, ids)
    arrays = ", ".join(dict.fromkeys(job_id.partition("_")[0] for job_id in ids))
    return f"submitted {len(names)} runs, jobs {arrays}{waiting}; logs in {queue.folder}"


# -- sweeps ----------------------------------------------------------------------------------------


def submit_sweep(jobs: Jobs) -> str:
    """Submit the runs of a sweep that have no result, and say what was submitted."""
    cells = {
        key: (run.config.replace("launch", cells_per_job=1), run.title)
        for key, run in _runs(jobs).items()
        if run.exit_code is None
    }
    cells_per_job = jobs.configs[0].launch.cells_per_job
    return submit(jobs.tree.hydra.launcher, cells_per_job, Queue(SWEEPS), cells, run_configs)


def list_sweep(jobs: Jobs) -> str:
    """Return a line for each run of a sweep: its result, or the state of its job."""
    runs = _runs(jobs)
    states = Queue(SWEEPS).describe(runs)
    states |= {key: run.status for key, run in runs.items() if run.exit_code is not None}
    return "\n".join(f"  {runs[key].title:40}  {states.get(key, 'left')}" for key in runs)


def _runs(jobs: Jobs) -> dict[str, Job]:
    """Return the runs of a sweep by their keys in the queue; those that are done have ended.

    Whatever a node would look up again is fixed: commits of the hub, initial weights, and the
    group, since the hash in a default group's name would change as a node resolves `auto`.
    """
    pinned = map(pinned_config, jobs.configs)
    configs = [config.replace("run", group=config.group) for config in pinned]
    runs = list(map(Job, configs, titles(jobs.overrides, configs)))
    check_together(runs)
    for run in runs:
        check_folder(run, settled=False)
    return {f"{run.folder} {run.config.config_sha256[:12]}": run for run in runs}


def run_configs(runs: Sequence[tuple[RunConfig, str]]) -> int:
    """Run the configs of one job, each with its title; return the exit code."""
    on_signal(interrupt)
    configs, titles = zip(*runs, strict=True)
    code, jobs = dispatch(configs, titles)
    # A run that diverged is done, be it alone or not.
    return EXIT_DONE if all(job.status in ("finished", "diverged") for job in jobs) else code
