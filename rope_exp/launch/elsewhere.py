"""Runs handed to another launcher of Hydra's, as submitit is: each job then dispatches its own run."""

from collections.abc import Callable
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.plugins import Plugins
from hydra.types import HydraContext

from rope_exp.config.compose import Jobs
from rope_exp.system.errors import ConfigError, first_line


def hand_over(jobs: Jobs, run: Callable[[Any], None]) -> None:
    """Give every job to the launcher that the config names, and wait for their ends.

    Args:
        jobs: all of them composed and checked.
        run: what each job calls with its composed config; found by its module's name in a process
            that the launcher starts, perhaps on another machine.
    Raises:
        ConfigError: of the first job that refused its config.
        ChildProcessError: the launcher refused its options, or a job failed otherwise.
    """
    context = HydraContext(config_loader=jobs.loader, callbacks=Callbacks(jobs.tree))
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=run, config=jobs.tree
    )
    try:
        for done in launcher.launch(jobs.overrides, initial_job_idx=0):
            # Reading it raises what the job raised.
            _ = done.return_value
    except ConfigError:
        raise
    except Exception as error:
        raise ChildProcessError(f"{type(launcher).__name__}: {first_line(error)}") from error
