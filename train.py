"""Train one run, or every run of a sweep: `python train.py pe=vo_rope`, `python train.py -m 'pe=glob(*)'`.

Hydra composes; rope_exp.config checks; rope_exp.launch dispatches. This process never imports torch, unless it is
already a rank (`accelerate launch train.py ...`) or asked to run inline. Exit codes: 0 done, 1 failed, 2 bad config or
usage, 3 diverged, 75 stopped with a checkpoint (the same command goes on).
"""

# ruff: noqa: E402

import contextlib
import os
import signal

SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
)  # stop.STOP_SIGNALS, before that can be imported
temporary: list[str] = []  # folders that are gone when this process ends


def leave(number: int, frame: object) -> None:
    """Asked to stop before there is anything to save. An exception could be lost, or be shown, inside an import."""
    for folder in temporary:
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # nobody may be reading
        os.write(2, b"stopped before any run was started\n")
    os._exit(75)  # EXIT_STOPPED, before that can be imported


if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, leave)

import re
import shutil
import sys
import tempfile
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rope_exp.config.compose import explain, read_command, to_run_config
from rope_exp.config.resolve import check_memory, settle
from rope_exp.config.run import RunConfig
from rope_exp.run.folder import read_result
from rope_exp.system.console import say
from rope_exp.system.errors import EXIT_CODES, EXIT_STOPPED, ConfigError, RecordError

jobs: list[RunConfig] = []
mistakes: list[
    ConfigError
] = []  # kept, since Hydra prints words of its own about a job that raises


@hydra.main(version_base=None, config_path="configs", config_name="config")
def collect(values: DictConfig) -> None:
    """Check one job. Jobs of Hydra's own launcher are dispatched together, after all have been checked."""
    hydra_config = HydraConfig.get()
    elsewhere = (
        hydra_config.mode == RunMode.MULTIRUN
        and "basic_launcher" not in hydra_config.launcher._target_
    )
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
    from rope_exp.launch import sweep as launch
    from rope_exp.system.errors import DataError

    for (
        number
    ) in SIGNALS:  # until the dispatcher or the worker takes over, what prepares data is unwound
        signal.signal(number, interrupt)
    try:
        if is_rank():
            return run_as_rank(configs)
        settled = [settle(config) for config in configs]
        for config in settled:
            check_memory(config)
        return launch.dispatch(settled)
    except (DataError, OSError) as error:
        return fail(error, 1)


def interrupt(number: int, frame: object) -> NoReturn:
    """Asked to stop while data are prepared; asked again, perhaps by one burst of signals, leave at once."""
    for each in SIGNALS:
        signal.signal(each, leave)
    raise KeyboardInterrupt


def is_rank() -> bool:
    """Whether a launcher started this process: torchrun sets RANK, `accelerate launch` at least its precision."""
    return "RANK" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ


def check_ranks() -> None:
    """Refuse what no launcher sets: a rank that is no number, is none of the world's, or cannot find the others.

    Raises:
        ConfigError: naming the variable of the environment.
    """
    given = {
        name: os.environ[name]
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        if name in os.environ
    }
    for name, value in given.items():
        if not re.fullmatch("[0-9]{1,9}", value) or (name == "WORLD_SIZE" and int(value) == 0):
            raise ConfigError(
                name,
                value,
                "is no number of a process; a launcher sets it, and without one it is unset",
            )
    if given and "RANK" not in given:
        raise ConfigError(
            "RANK",
            ...,
            f"a launcher sets it beside {' and '.join(given)}; without one they are unset",
        )
    world = int(given.get("WORLD_SIZE", "1"))
    for name in given.keys() - {"WORLD_SIZE"}:
        if int(given[name]) >= world:
            raise ConfigError(name, given[name], f"must be below WORLD_SIZE={world}")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if world > 1 and not os.environ.get(name):
            raise ConfigError(name, ..., f"a launcher sets it where WORLD_SIZE={world}")


def run_as_rank(configs: list[RunConfig]) -> int:
    """`accelerate launch train.py ...`: the world is the launcher's, not launch.num_processes."""
    if len(configs) > 1:
        allowed = "every rank of `accelerate launch` would run the sweep; use `python train.py`"
        raise ConfigError("--multirun", ..., allowed)
    from rope_exp.launch.admit import acquire_or_refuse, admit
    from rope_exp.system.signals import StopSignal
    from rope_exp.training import worker

    config = settle(configs[0], world_size=int(os.environ.get("WORLD_SIZE", "1")))
    check_memory(config, num_here=1)
    if (
        os.environ.get("RANK", "0") == "0"
    ):  # the others only need the config, and find the data prepared
        [job] = admit([config])
        if job.exit_code is None:
            acquire_or_refuse(job)
    result = None if config.run.fresh else read_result(config.folder)
    if result is not None:
        return EXIT_CODES[result["status"]]
    return worker.end(worker.guarded(lambda: worker.run(config, config.folder, StopSignal())))


def fail(error: Exception, code: int) -> int:
    """One sentence on standard error."""
    say(f"error: {error}")
    return code


def scratch() -> str:
    """A folder for the file that Hydra insists on writing beside a sweep; gone when this process ends."""
    temporary.append(tempfile.mkdtemp(prefix="rope_exp-"))
    return temporary[-1]


def main() -> int:
    """Compose, check, dispatch."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, who say them in one sentence
    OmegaConf.register_new_resolver("scratch", scratch, use_cache=True)
    try:
        compose()
        return dispatch(jobs) if jobs else 0
    except (ConfigError, RecordError) as error:
        return fail(error, 2)
    except OSError as error:
        return fail(error, 1)
    except KeyboardInterrupt:
        say("stopped before any run was started")
        return EXIT_STOPPED
    finally:
        for number in SIGNALS:  # the rest is Python's own end, which a signal would only garble
            signal.signal(number, signal.SIG_IGN)
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)


def compose() -> None:
    """Have Hydra fill `jobs`, or print what --cfg, --help and --info ask for, or hand the runs to another launcher.

    Raises:
        ConfigError: whatever is wrong with the command line or a file.
    """
    check_ranks()
    args = read_command(sys.argv[1:])
    flags = [word for word in sys.argv[1:] if word not in args.overrides]
    sys.argv[1:] = [*flags, *args.overrides]  # Hydra itself takes no flag between overrides
    try:
        collect()
    except (HydraException, OmegaConfBaseException, YAMLError, RecursionError, ValueError) as error:
        raise explain(error) from error
    if mistakes:
        raise mistakes[0]


if __name__ == "__main__":
    sys.exit(main())
