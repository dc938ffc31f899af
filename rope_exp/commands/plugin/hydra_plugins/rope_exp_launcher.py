"""Hydra launcher plugin that runs sweeps with our dispatcher.

Hydra searches only the package `hydra_plugins`. Every program with Hydra in this environment
imports this file, so it loads nothing of ours.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write


class RopeExpLauncher(Launcher):
    """Checks all jobs of a sweep before the first one starts, then dispatches them together."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Store the state that `launch` needs, as Hydra calls it before.

        Args:
            hydra_context: has the loader of configs.
            task_function: runs a job; only other launchers use it.
            config: composed without the swept overrides.
        """
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs, and return the `val/loss` of each."""
        from rope_exp.commands.train import launch

        trees = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            tree = self.loader.load_sweep_config(self.config, list(overrides))
            with read_write(tree.hydra):
                tree.hydra.job.num = number
                tree.hydra.job.id = str(number)
            trees.append(tree)
        returned = launch(trees, job_overrides)
        # A sweeper may write its results there, and expects its launcher to make the folder.
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        return returned
