"""Train one run, or every run of a sweep: `python train.py pe=vo_rope`, `python train.py -m 'pe=glob(*)'`.

Hydra composes; rope_exp.config checks; rope_exp.launch dispatches. This process never imports torch, unless it is
already a rank (`accelerate launch train.py ...`) or asked to run inline. Exit codes: 0 done, 1 failed, 2 bad config or
usage, 3 diverged, 75 stopped with a checkpoint (the same command goes on).
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rope_exp.compose import explain, to_run_config
from rope_exp.config import RunConfig
from rope_exp.machine import settle
from rope_exp.record import RecordError, read_result
from rope_exp.schema import ConfigError
from rope_exp.stop import EXIT_STOPPED

jobs: list[RunConfig] = []
mistakes: list[ConfigError] = []  # kept, since Hydra prints words of its own about a job that raises


@hydra.main(version_base=None, config_path="configs", config_name="config")
def collect(values: DictConfig) -> None:
    """Check one job. Jobs of Hydra's own launcher are dispatched together, after all have been checked."""
    hydra_config = HydraConfig.get()
    elsewhere = hydra_config.mode == RunMode.MULTIRUN and "basic_launcher" not in hydra_config.launcher._target_
    try:
        config = to_run_config(values)
    except ConfigError as error:
        if elsewhere:
            raise
        mistakes.append(error)
        return
    if not elsewhere:
        jobs.append(config)
    elif code := dispatch([config]):  # this process is a job of submitit's or another launcher's
        sys.exit(code)


def dispatch(configs: list[RunConfig]) -> int:
    """Hand the runs to the dispatcher, or run the one as the rank that this process is."""
    from rope_exp import launch
    from rope_exp.data import DataError

    try:
        if is_rank():
            return run_as_rank(configs)
        return launch.dispatch([settle(config) for config in configs])
    except (DataError, OSError) as error:
        return fail(error, 1)


def is_rank() -> bool:
    """Whether a launcher started this process: torchrun sets RANK, `accelerate launch` at least its precision."""
    return "RANK" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ


def run_as_rank(configs: list[RunConfig]) -> int:
    """`accelerate launch train.py ...`: the world is the launcher's, not launch.num_processes."""
    if len(configs) > 1:
        allowed = "every rank of `accelerate launch` would run the sweep; use `python train.py`"
        raise ConfigError("--multirun", ..., allowed)
    from rope_exp import launch, worker
    from rope_exp.stop import StopSignal

    config = settle(configs[0], world_size=int(os.environ.get("WORLD_SIZE", "1")))
    if os.environ.get("RANK", "0") == "0":  # the others only need the config, and find the data prepared
        [cell] = launch.plan([config])
        if cell.exit_code is None:
            launch.take(cell)
    result = None if config.run.fresh else read_result(config.folder)
    if result is not None:
        return worker.EXIT_CODES[result["status"]]
    return worker.guarded(lambda: worker.run(config, config.folder, StopSignal()))


def fail(error: Exception, code: int) -> int:
    """One sentence on standard error."""
    print(f"error: {error}", file=sys.stderr)
    return code


def scratch() -> str:
    """A folder for the file that Hydra insists on writing beside a sweep; gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="rope_exp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def main() -> int:
    """Compose, check, dispatch."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the dispatcher or the worker takes over
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, who say them in one sentence
    OmegaConf.register_new_resolver("scratch", scratch, use_cache=True)
    try:
        collect()
        if mistakes:
            return fail(mistakes[0], 2)
        return dispatch(jobs) if jobs else 0
    except (ConfigError, RecordError) as error:
        return fail(error, 2)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        return fail(explain(error), 2)
    except KeyboardInterrupt:
        print("stopped before any run was started", file=sys.stderr)
        return EXIT_STOPPED


if __name__ == "__main__":
    sys.exit(main())
