"""This process as a rank that a launcher started, such as torchrun or `accelerate launch`."""

import itertools
import os
from collections.abc import Iterator

from rope_exp.compose import finalise
from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_CODES, ConfigError
from rope_exp.folder import read_result
from rope_exp.identity import Refusal
from rope_exp.prepare import prepared_folder
from rope_exp.signals import StopSignal
from rope_exp.sweep import acquire_or_refuse, admit
from rope_exp.worker import run_rank

# Every launcher sets one of these variables.
LAUNCHER_VARIABLES = ("RANK", "ACCELERATE_MIXED_PRECISION")


def is_rank() -> bool:
    """Return whether a launcher started this process."""
    return any(name in os.environ for name in LAUNCHER_VARIABLES)


def refuse_rank(what: str) -> None:
    """Refuse what starts ranks of its own, in a process that a launcher started."""
    for name in LAUNCHER_VARIABLES:
        if name in os.environ:
            reason = "is set, as by `accelerate launch` or torchrun, each of whose ranks would run "
            reason += f"{what}; start it without a launcher, and unset what one has left over"
            raise ConfigError(name, os.environ[name], reason)


def check_ranks() -> None:
    """Refuse invalid variables of a rank, missing ranks, and settings of accelerate."""
    # One after the other: a later rule relies on those before it.
    for name, reason in itertools.chain(_accelerate_refusals(), _rank_refusals()):
        raise ConfigError(name, os.environ.get(name, ...), reason)


def _accelerate_refusals() -> Iterator[Refusal]:
    """Yield the settings of accelerate that a run does not follow."""
    variable = os.environ.get
    # Accelerate would divide losses by it.
    name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
    if variable(name, "1") != "1":
        yield Refusal(name, "must be 1: train.micro_batch_size splits a batch")
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        if variable(name, "").lower() not in ("", "0", "no", "false"):
            yield Refusal(name, "must be unset: every rank holds all weights")

    # `accelerate launch` sets the address if asked for several processes. On a CPU, or without
    # --multi_gpu, it starts only one.
    if is_rank() and not _has_rank_number() and "MASTER_ADDR" in os.environ:
        reason = "asked for several processes, and one was started; use --multi_gpu on GPUs, "
        reason += "or launch.num_processes=N without a launcher"
        yield Refusal("accelerate launch --num_processes", reason)


def _has_rank_number() -> bool:
    """Return whether this process is one of several ranks, or the numbered rank of a launcher."""
    return "RANK" in os.environ or os.environ.get("WORLD_SIZE", "1") != "1"


def _rank_refusals() -> Iterator[Refusal]:
    """Yield the variables that do not say which rank of how many this process is."""
    variable = os.environ.get
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        if not variable(name, "0").isdecimal():
            yield Refusal(name, "must be a number; without a launcher it is unset")

    if _has_rank_number():
        yield from _number_refusals(variable("WORLD_SIZE", "1"))


def _number_refusals(world_size: str) -> Iterator[Refusal]:
    """Yield the variables of a numbered rank that are missing or invalid."""
    variable = os.environ.get
    names = ["RANK"]
    if world_size != "1":
        names += ["MASTER_ADDR", "MASTER_PORT"]
    for name in names:
        if not variable(name):
            yield Refusal(name, f"a launcher sets it beside WORLD_SIZE={world_size}")

    port = variable("MASTER_PORT", "1")
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        yield Refusal("MASTER_PORT", "must be a number from 1 to 65535")
    rank = os.environ["RANK"]
    is_valid = rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)
    if not is_valid:
        yield Refusal("RANK", f"must be a number below WORLD_SIZE={world_size}")


def run_as_rank(config: RunConfig) -> int:
    """Train one run in this process, which is a rank, and return the exit code."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    requested = config.launch.num_processes
    # 1 is the default, and `all` leaves the number to the launcher.
    if requested not in (1, "all", world_size):
        reason = f"but this launcher started {world_size}"
        raise ConfigError("launch.num_processes", requested, reason)
    config = finalise(config, world_size)
    name = "ACCELERATE_MIXED_PRECISION"
    precision = os.environ.get(name, "no").lower()
    if precision not in ("no", config.train.precision):
        reason = f"is not followed: train.precision={config.train.precision} decides"
        raise ConfigError(name, precision, reason)

    if os.environ.get("RANK", "0") == "0":
        [run] = admit([config])
        acquire_or_refuse(run)

    result = read_result(config.folder)
    if result is not None:
        return EXIT_CODES[result["status"]]
    # The first rank has prepared the corpus by now, or another one does; the others wait for it.
    corpus = None if config.task else prepared_folder(config.data, config.tokenizer)
    return run_rank(lambda: config, corpus, StopSignal())
