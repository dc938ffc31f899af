"""This process is already a rank: `accelerate launch train.py ...` and `torchrun ... train.py ...`.

Then the launcher's world counts, not launch.num_processes, and the run is not dispatched but run.
"""

import os
import re

from rope_exp.config.run import RunConfig
from rope_exp.run.folder import describe_done, read_result
from rope_exp.system.errors import EXIT_CODES, ConfigError


def is_rank() -> bool:
    """Return whether a launcher started this process.

    torchrun sets RANK, `accelerate launch` at least its precision.
    """
    return "RANK" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ


def check_ranks() -> None:
    """Refuse what no launcher sets: a rank that is no number, is none of the world's, or is alone.

    Raises:
        ConfigError: naming the variable of the environment.
    """
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
                (f"a launcher sets it beside WORLD_SIZE={world_size}; without one all are unset"),
            )


def run_as_rank(config: RunConfig) -> int:
    """Train one run as the rank that this process is, and return its exit code.

    Raises:
        ConfigError, DataError, DiskError: before anything is written.
    """
    # Not above: it is slow to import, and every command asks this module whether it is a rank.
    from rope_exp.launch.admit import acquire_or_refuse, admit, resolved

    config = resolved(config, world_size=int(os.environ.get("WORLD_SIZE", "1")))

    # The other ranks only need the config, and find the data prepared.
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


def run_here(config: RunConfig) -> int:
    """Train one run in this very process, which holds its lock; return its exit code."""
    from rope_exp.system.signals import StopSignal
    from rope_exp.training import worker

    return worker.end_process(
        worker.explain_errors(lambda: worker.run(config, config.folder, StopSignal()))
    )
