"""`rope-exp train`: Hydra composes the runs of a command line, and the dispatcher runs them."""

import atexit
import logging
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rope_exp.commands._rank import check_ranks, is_rank, refuse_rank, run_as_rank
from rope_exp.compose import (
    CONFIGS,
    HYDRA_VERSION,
    MISTAKES,
    ZERO_STEP,
    check_own_sweep,
    range_error,
    titles,
    to_config_error,
    to_run_config,
    without_hydra,
    zero_step_error,
)
from rope_exp.config import RunConfig
from rope_exp.errors import (
    EXIT_DIVERGED,
    EXIT_DONE,
    EXIT_STOPPED,
    ConfigError,
    RunFolderError,
    run_command,
)
from rope_exp.folder import read_result
from rope_exp.machine import PACKAGE, child_environment
from rope_exp.sweep import dispatch, drop_tracker_id

# The exit code of each sweep that our launcher has run in this process.
exit_codes: list[int] = []


def main(argv: list[str]) -> int:
    """Let Hydra compose and start the runs of a command line, or print the output of its flags."""
    check_ranks()
    _add_plugin()
    # Hydra's parser expects its flags first.
    sys.argv[1:] = sorted(argv, key=lambda word: "=" in word and not word.startswith("-"))
    # Make Hydra raise errors instead of printing them.
    shows_all = os.environ.setdefault("HYDRA_FULL_ERROR", "0") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Hydra prints through logging, which would show a traceback per line to a closed pipe.
    logging.raiseExceptions = False

    try:
        hydra.main(str(CONFIGS), "config", HYDRA_VERSION)(run_job)()
    except SystemExit as end:
        return int(end.code or 0)
    except ChildProcessError:
        # The sweep has already reported the failed runs.
        if not exit_codes:
            raise
    except (ConfigError, RunFolderError):
        raise
    except MISTAKES as error:
        if shows_all:
            raise
        # Hydra's sweeper does not name the key.
        if "does not support sweep type" in str(error):
            raise range_error(_key_of("interval(", argv)) from error
        if re.search(ZERO_STEP, str(error)):
            raise zero_step_error(_key_of("range(", argv)) from error
        raise to_config_error(error) from error
    except RuntimeError as error:
        if '"srun"' not in str(error):
            raise
        reason = "there is no SLURM here (no srun); launch=slurm_local rehearses it"
        raise ConfigError("launch", "slurm", reason) from None
    return max(exit_codes, default=0)


def _key_of(function: str, overrides: Sequence[str]) -> str:
    """Return the key of the first override that calls a function, or `sweep` if a file does."""
    for override in overrides:
        if function in override:
            return override.partition("=")[0]
    return "sweep"


def _add_plugin() -> None:
    """Make our launcher Hydra's default; Hydra finds plugins only in the package hydra_plugins."""
    # A checkout adds its folder to the paths of this process and of those that a launcher starts.
    folder = PACKAGE / "commands" / "plugin"
    if folder.is_dir():
        sys.path.append(str(folder))
        paths = [child_environment().get("PYTHONPATH"), str(folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    # Discovery stores the plugins' own configs, so it must precede ours.
    Plugins.instance()
    launcher = {"_target_": "hydra_plugins.rope_exp_launcher.RopeExpLauncher"}
    ConfigStore.instance().store("basic", launcher, group="hydra/launcher", provider="rope_exp")


def _sweep_dir(launcher: str, sweeper: str) -> str:
    """Return the folder where plugins write, such as optuna; ours and Hydra's own need none."""
    if not ("rope_exp" in launcher and "basic_sweeper" in sweeper):
        return "results/launcher"
    folder = tempfile.mkdtemp(prefix="rope-exp-sweep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


OmegaConf.register_new_resolver("sweep_dir", _sweep_dir, use_cache=True, replace=True)


def run_job(values: DictConfig) -> float | None:
    """Run one job, and return its `val/loss` if another launcher started it, in a sweep."""
    if HydraConfig.get().mode == RunMode.RUN:
        # Hydra would print its own line before an exception.
        code = run_command(lambda: _run_task(values)[0])
        if code:
            raise SystemExit(code)
        return None
    check_own_sweep(HydraConfig.get())
    drop_tracker_id()
    code, config = _run_task(values)
    if code not in (EXIT_DONE, EXIT_DIVERGED):
        raise ChildProcessError(f"the run ended with exit code {code}; see its own words")
    return _loss(config)


def _run_task(values: DictConfig) -> tuple[int, RunConfig]:
    """Dispatch one run, or train it if this process is a rank.

    Returns:
        The exit code, and the config by which it ran, with `auto` keys resolved.
    """
    config = to_run_config(values, HydraConfig.get())
    if is_rank():
        return run_as_rank(config), config
    code, [run] = dispatch([config], [config.name])
    return code, run.config


def launch(trees: Sequence[DictConfig], overrides: Sequence[Sequence[str]]) -> list[JobReturn]:
    """Check all runs of a sweep, then start them; a failed run does not stop the others.

    Args:
        trees: the composed config of each run, with Hydra's node.
        overrides: the overrides of each run.
    Returns:
        The result of each run as Hydra has it, with its `val/loss`; inf for a run that diverged.
    Raises:
        SystemExit: the sweep was stopped.
    """
    refuse_rank("the sweep")
    if not trees:
        raise ConfigError("--multirun", ..., "the sweep is empty: no choice matches its pattern")

    configs = []
    for tree in trees:
        # A config may read Hydra's own values (`${hydra:job.num}`).
        HydraConfig.instance().set_config(tree)
        check_own_sweep(tree.hydra)
        configs.append(to_run_config(tree))
        # This function is our launcher's.
        if "rope_exp" not in str(tree.hydra.launcher.get("_target_")):
            reason = "a sweep has one launcher, so launch takes one value"
            raise ConfigError("launch", configs[-1].launch.name, reason)
    # A sweeper such as optuna's may ask for one run at a time.
    drop_tracker_id()
    code, runs = dispatch(configs, titles(overrides, configs))
    exit_codes.append(code)
    if code == EXIT_STOPPED:
        raise SystemExit(code)

    results = []
    for tree, run_overrides, run in zip(trees, overrides, runs, strict=True):
        result = JobReturn(overrides=run_overrides, cfg=without_hydra(tree), task_name="train")
        result.status = JobStatus.FAILED
        result.return_value = ChildProcessError(f"{run.name}: {run.status}")
        if run.status in ("finished", "diverged"):
            result.status = JobStatus.COMPLETED
            result.return_value = _loss(run.config)
        results.append(result)
    return results


def _loss(config: RunConfig) -> float:
    """Return the loss of a run that is done, or infinity if it diverged."""
    result = read_result(config.folder)
    if result is None or result["val/loss"] is None:
        return math.inf
    return float(result["val/loss"])
