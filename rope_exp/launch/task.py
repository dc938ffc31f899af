"""Functions that Hydra calls: the task function of one job, and the sweep of our launcher.

Another launcher (joblib, submitit) calls the task function in its own process, which then
dispatches its single run.
"""

import atexit
import math
import shutil
import tempfile
from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rope_exp.config.run import RunConfig
from rope_exp.launch.as_rank import is_rank, run_as_rank
from rope_exp.launch.job import Job
from rope_exp.plan.compose import check_folders, titles, to_run_config, without_hydra
from rope_exp.system.errors import EXIT_DIVERGED, EXIT_DONE, EXIT_STOPPED, ConfigError, explained
from rope_exp.system.signals import interrupt, on_signal

# The exit code of each sweep that our launcher has run in this process.
exit_codes: list[int] = []


def _sweep_dir(launcher: str, sweeper: str) -> str:
    """Return the folder where plugins write about a sweep: their logs, and optuna's best result.

    Our launcher writes nothing: with it and the basic sweeper the folder is removed at exit.
    """
    if not ("rope_exp" in launcher and "basic_sweeper" in sweeper):
        return "results/launcher"
    folder = tempfile.mkdtemp(prefix="rope-exp-sweep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


OmegaConf.register_new_resolver("sweep_dir", _sweep_dir, use_cache=True, replace=True)


def run_job(values: DictConfig) -> float | None:
    """Run one job, and return its `val/loss` if another launcher started it, in a sweep.

    Raises:
        SystemExit: the only run of a command did not finish; with its exit code.
        ConfigError, ChildProcessError: the same for a job that another launcher started.
    """
    if HydraConfig.get().mode == RunMode.RUN:
        # Hydra would print its own line before an exception.
        if code := explained(lambda: _run_one(values)[0]):
            raise SystemExit(code)
        return None
    code, config = _run_one(values)
    if code not in (EXIT_DONE, EXIT_DIVERGED):
        raise ChildProcessError(f"the run ended with exit code {code}; see its own words")
    return _loss(config)


def _run_one(values: DictConfig) -> tuple[int, RunConfig]:
    """Dispatch one run, or train it if this process is a rank.

    Returns:
        The exit code, and the config by which it ran, whose group may differ from the composed
        one's: the default group has the hash of the values that `auto` keys take here.
    """
    check_folders(OmegaConf.create({"hydra": HydraConfig.get()}))
    config = to_run_config(values, HydraConfig.get())

    # Imported late: it takes half a second, which a mistake need not wait for.
    from rope_exp.launch import sweep

    # Until the dispatcher or the worker takes over, a signal interrupts data preparation.
    on_signal(interrupt)
    if is_rank():
        return run_as_rank(config), config
    code, [job] = sweep.dispatch([config], [config.name])
    return code, job.config


def launch(trees: Sequence[DictConfig], words: Sequence[Sequence[str]]) -> list[JobReturn]:
    """Check all jobs of a sweep, then run them; a failed run does not stop the others.

    Args:
        trees: the composed config of each job, with Hydra's node.
        words: the overrides of each job.
    Returns:
        The result of each job, with its `val/loss`; inf for a run that diverged.
    Raises:
        ConfigError, DataError, DiskError: before any run starts.
        SystemExit: the sweep was stopped.
    """
    if is_rank():
        allowed = "every rank of `accelerate launch` would run the sweep; use `rope-exp train`"
        raise ConfigError("--multirun", ..., allowed)

    if not trees:
        raise ConfigError("--multirun", ..., "the sweep is empty: no choice matches its pattern")

    check_folders(trees[0])
    configs = [_of_job(tree) for tree in trees]

    from rope_exp.launch import sweep

    on_signal(interrupt)
    code, jobs = sweep.dispatch(configs, titles(words, configs))

    exit_codes.append(code)
    if code == EXIT_STOPPED:
        raise SystemExit(code)
    return [_outcome(tree, each, job) for tree, each, job in zip(trees, words, jobs, strict=True)]


def _of_job(tree: DictConfig) -> RunConfig:
    """Convert the config of one job, which may read Hydra's own values (`${hydra:job.num}`)."""
    HydraConfig.instance().set_config(tree)
    return to_run_config(tree)


def _outcome(tree: DictConfig, words: Sequence[str], job: Job) -> JobReturn:
    """Return a job's result for the sweeper."""
    returned = JobReturn(overrides=words, cfg=without_hydra(tree), task_name="train")
    if job.status in ("finished", "diverged"):
        returned.status = JobStatus.COMPLETED
        returned.return_value = _loss(job.config)
    else:
        returned.status = JobStatus.FAILED
        returned.return_value = ChildProcessError(f"{job.name}: {job.status}")
    return returned


def _loss(config: RunConfig) -> float:
    """Return the loss of a run that is done, or infinity if it diverged."""
    from rope_exp.run.folder import read_result

    result = read_result(config.folder)
    if result is None or result["val/loss"] is None:
        return math.inf
    return float(result["val/loss"])
