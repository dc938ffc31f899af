"""Sweeps under the launcher of another package (joblib, submitit), with messages about jobs."""

import math
from collections.abc import Callable, Sequence
from itertools import compress
from shutil import which
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from rope_exp.launch.task import exit_codes
from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_FAILED, ConfigError, first_line


class Telling(Launcher):
    """Wraps another package's launcher, and logs each job that failed or diverged."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    def setup(self, **_: Any) -> None:
        """Do nothing: the launcher is already set up."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs and return their results; a run that diverged returns infinity."""
        if "submitit" in type(self.launcher).__module__:
            _tell_job_ids()

        returned = self.launcher.launch(job_overrides, initial_job_idx)
        swept = [len(set(values)) > 1 for values in zip(*job_overrides, strict=True)]
        for words, job in zip(job_overrides, returned, strict=True):
            name = " ".join(["a job", *compress(words, swept)])
            if job.status == JobStatus.FAILED:
                log(f"{name}: failed: {first_line(job._return_value)}")
            elif job.return_value == math.inf:
                log(f"{name}: diverged")
            else:
                continue
            exit_codes.append(EXIT_FAILED)
        return returned


def telling(instantiate: Callable[..., Launcher]) -> Callable[..., Launcher]:
    """Wrap Hydra's function that makes launchers, so that other packages' are `Telling`."""

    def made(*args: Any, **kwargs: Any) -> Launcher:
        launcher = instantiate(*args, **kwargs)
        # Before Hydra writes anything about the sweep.
        if type(launcher).__name__ == "SlurmLauncher" and which("srun") is None:
            allowed = "there is no SLURM here (no srun); launch=slurm_local rehearses it"
            raise ConfigError("launch", "slurm", allowed)
        is_ours = type(launcher).__module__ == "hydra_plugins.rope_exp_launcher"
        return launcher if is_ours else Telling(launcher)

    return made


def _tell_job_ids() -> None:
    """Make submitit log the ids of the jobs that it submits, which it does not show itself."""
    import submitit

    class Executor(submitit.AutoExecutor):
        def map_array(self, *args: Any) -> Any:
            jobs = super().map_array(*args)
            log(f"submitted as {', '.join(job.job_id for job in jobs)}; logs in {self.folder}")
            return jobs

    submitit.AutoExecutor = Executor  # type: ignore[misc]
