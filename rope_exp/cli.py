"""The commands: `rope-exp train ...` and the others below, or `python -m rope_exp train ...`.

`train.py` and `scripts/` are doors to the same commands. Each command's own logic is in its
package; here it is composed, dispatched, printed, and its mistakes become one sentence and an
exit code: 0 done, 1 failed, 2 bad config or usage, 3 diverged, 75 stopped with a checkpoint (the
same command goes on). This process never imports torch, unless it is itself a rank.
"""

# Nothing slow may be imported here: a signal in the first second meets `leave` only after this.
import os
import sys
from typing import TYPE_CHECKING, Any

from rope_exp.system.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigError,
    DataError,
    RecordError,
    out_of_memory,
)
from rope_exp.system.signals import interrupt, on_signal, starting_runs

if TYPE_CHECKING:
    from rope_exp.config.run import RunConfig

HELP = """Where in attention should a rotation go?

  rope-exp train pe=vo_rope          train one run, or every run of a sweep
  rope-exp campaign NAME             run what is left of a campaign of many runs
  rope-exp report --group NAME       the table of the runs that are done
  rope-exp plan model=1b             what a config costs before it runs
  rope-exp prepare data=files ...    prepare a corpus ahead of training
  rope-exp mirror RUN_FOLDER ...     mirror runs to wandb again from their files
  rope-exp generate RUN_FOLDER TEXT  text from a run's model

`rope-exp COMMAND --help` says more. `python train.py` and `python scripts/report.py` are the same.
"""

# The commands of rope_exp/commands.py.
OTHERS = ("campaign", "report", "plan", "prepare", "mirror", "generate")


def main(command: str | None = None) -> int:
    """Run one command of this process's command line, and return its exit code.

    Args:
        command: train, or one of `OTHERS`; None: the first word says it.
    """
    _open_closed_streams()
    words = sys.argv[1:]
    if command is None:
        command = words.pop(0) if words else "--help"

    try:
        code = _run(command, words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever was reading has seen enough. What is left would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ConfigError, RecordError, DataError, OSError, MemoryError, RuntimeError) as error:
        from rope_exp.system.console import log

        told = out_of_memory(error)
        if told is None and not isinstance(error, (ConfigError, RecordError, DataError, OSError)):
            raise
        log(f"error: {told or error}")
        return EXIT_USAGE if isinstance(error, (ConfigError, RecordError)) else EXIT_FAILED


def _open_closed_streams() -> None:
    """Open /dev/null as each standard stream that is closed.

    Else the next file that is opened, such as a lock, takes its number, and ranks write there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # It is given the lowest number that is free, and ranks inherit it.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r", closefd=False))


def _run(command: str, words: list[str]) -> int:
    """Run the command that `command` names."""
    if command in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if command == "--version":
        from rope_exp import __version__

        print(__version__)
        return 0

    if command == "train":
        return starting_runs(lambda: train(words))
    if command == "campaign":
        return starting_runs(lambda: _other(command, words))
    return _other(command, words)


def _other(command: str, words: list[str]) -> int:
    from rope_exp import commands

    if command not in OTHERS:
        raise ConfigError("command", command, f"must be one of train, {', '.join(OTHERS)}")
    return int(getattr(commands, command)(words))


# -- train -------------------------------------------------------------------------------------


def train(words: list[str]) -> int:
    """Compose, check, dispatch; or print what --help, --cfg and --info ask for."""
    from rope_exp.config.command import read_command, show
    from rope_exp.config.compose import compose_jobs
    from rope_exp.launch.as_rank import check_ranks

    check_ranks()
    command = read_command(words)
    if show(command):
        return 0

    jobs = compose_jobs(command.overrides, command.config_dir, multirun=command.multirun)
    if not jobs.have_launcher:
        return _dispatch(jobs.configs, jobs.titles)

    from rope_exp.launch.elsewhere import hand_over

    hand_over(jobs, run_elsewhere)
    return 0


def run_elsewhere(values: Any) -> None:
    """Run one job of another launcher's (submitit's), in a process that it started.

    Args:
        values: the job's composed config, a DictConfig without Hydra's own node.
    """
    from rope_exp.config.compose import check_tree, to_run_config

    check_tree(values)
    config = to_run_config(values)
    if code := _dispatch([config], [config.name]):
        sys.exit(code)


def _dispatch(configs: "list[RunConfig]", titles: list[str]) -> int:
    """Hand the runs to the dispatcher, or run the one as the rank that this process is."""
    from rope_exp.launch import sweep
    from rope_exp.launch.admit import resolved
    from rope_exp.launch.as_rank import is_rank, run_as_rank

    # Until the dispatcher or the worker takes over, what prepares data is unwound.
    on_signal(interrupt)

    if is_rank():
        if len(configs) > 1:
            raise ConfigError(
                "--multirun",
                ...,
                "every rank of `accelerate launch` would run the sweep; use `python train.py`",
            )
        return run_as_rank(configs[0])

    return sweep.dispatch([resolved(config) for config in configs], titles)
