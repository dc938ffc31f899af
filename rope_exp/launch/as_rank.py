"""Training in a process that is already a rank: `accelerate launch train.py`, `torchrun train.py`.

The launcher's world size then replaces launch.num_processes, and the process trains the run itself
instead of dispatching it.
"""

import os
import re

from rope_exp.config.run import RunConfig
from rope_exp.system.errors import EXIT_CODES, ConfigError

# Accelerate's settings that would change training, each with the project's own rule.
INSTEAD = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "train.micro_batch_size splits a batch",
    "ACCELERATE_USE_FSDP": "every rank holds all weights",
    "ACCELERATE_USE_DEEPSPEED": "every rank holds all weights",
    "ACCELERATE_USE_MEGATRON_LM": "every rank holds all weights",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "every rank holds all weights",
}
# Values by which a launcher marks a setting as unused.
UNUSED = ("", "0", "1", "no", "false")


def is_rank() -> bool:
    """Return whether a launcher started this process.

    torchrun sets RANK, `accelerate launch` at least its precision.
    """
    return "RANK" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ


def check_ranks() -> None:
    """Refuse invalid variables of a rank, missing ranks, and settings of accelerate.

    Raises:
        ConfigError: naming the variable of the environment.
    """
    for name, instead in INSTEAD.items():
        value = os.environ.get(name, "")
        if value.lower() not in UNUSED:
            raise ConfigError(name, value, f"is not followed, and must be unset: {instead}")

    given = {}
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        value = os.environ.get(name, "")
        if re.fullmatch("[0-9]{1,9}", value):
            given[name] = int(value)
        elif name in os.environ:
            raise ConfigError(
                name,
                value,
                "is no number of a process; a launcher sets it, and without one it is unset",
            )
    if not given:
        # `accelerate launch` sets the address if asked for several processes. On a CPU, or without
        # --multi_gpu, it starts only one.
        if is_rank() and "MASTER_ADDR" in os.environ:
            raise ConfigError(
                "accelerate launch --num_processes",
                ...,
                "asked for several processes, and one was started; use --multi_gpu on GPUs, or "
                "launch.num_processes=N without a launcher",
            )
        return

    world_size = given.pop("WORLD_SIZE", 1)
    for name, rank in given.items():
        if rank >= world_size:
            raise ConfigError(name, rank, f"must be below WORLD_SIZE={world_size}")

    needed = ["RANK"] if world_size == 1 else ["RANK", "MASTER_ADDR", "MASTER_PORT"]
    for name in needed:
        if not os.environ.get(name):
            raise ConfigError(
                name,
                ...,
                f"a launcher sets it beside WORLD_SIZE={world_size}; without one all are unset",
            )


def run_as_rank(config: RunConfig) -> int:
    """Train one run in this process, which is a rank, and return the exit code.

    Raises:
        ConfigError, DataError, DiskError: before anything is written.
    """
    # Imported late: these are slow to import, and every command calls `is_rank`.
    from rope_exp.launch.admit import acquire_or_refuse, admit, resolved
    from rope_exp.run.folder import describe_done, read_result

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    asked = config.launch.num_processes
    # 1 is the default, and `all` leaves the number to the launcher.
    if asked not in (1, "all", world_size):
        raise ConfigError("launch.num_processes", asked, f"but this launcher started {world_size}")
    config = resolved(config, world_size)
    _check_precision(config)

    # The other ranks need only the config; the first rank prepares the data.
    if os.environ.get("RANK", "0") == "0":
        [job] = admit([config])
        if job.exit_code is None:
            acquire_or_refuse(job)
        if job.exit_code is not None:
            print(describe_done(job.folder))

    result = None if config.run.fresh else read_result(config.folder)
    if result is not None:
        return EXIT_CODES[result["status"]]
    return run_here(config)


def _check_precision(config: RunConfig) -> None:
    """Refuse a launcher that asks for another precision than the run has.

    `accelerate launch` sets "no" by default.
    """
    name = "ACCELERATE_MIXED_PRECISION"
    value = os.environ.get(name, "no").lower()
    if value not in ("no", config.train.precision):
        allowed = f"is not followed: train.precision={config.train.precision} decides"
        raise ConfigError(name, value, allowed)


def run_here(config: RunConfig) -> int:
    """Train one run in this process, and return its exit code."""
    from rope_exp.system.signals import StopSignal
    from rope_exp.training import worker

    return worker.end_process(
        worker.explain_errors(lambda: worker.run(config, config.folder, StopSignal()))
    )
