"""The command line: `rope-exp COMMAND ...`, or `python -m rope_exp COMMAND ...`.

Exit codes: 0 done, 1 failed, 2 bad config or usage, 3 diverged, 75 stopped with a checkpoint.
"""

# Import nothing slow here: signals reach `leave` only after these imports.
import os
import sys

from rope_exp.errors import explained
from rope_exp.signals import starting_runs

HELP = """Where in attention should a rotation go?

  rope-exp train pe=vo_rope          train one run, or every run of a sweep
  rope-exp campaign NAME             run what is left of a campaign of many runs
  rope-exp sweep ... launch=slurm    submit the runs of a sweep to a cluster
  rope-exp report --group NAME       the table of the runs that are done
  rope-exp plan model=1b             what a config costs before it runs
  rope-exp prepare data=files ...    prepare a corpus ahead of training
  rope-exp generate RUN_FOLDER TEXT  text from a run's model
  rope-exp export RUN_FOLDER OUT     a run's model for transformers
  rope-exp check-records FOLDER      whether somebody's records are whole and comparable

`rope-exp COMMAND --help` says more. `python train.py` and `python scripts/report.py` are the same.
"""


def main(command: str | None = None) -> int:
    """Run a command, by default the first word of the command line; return its exit code."""
    # The next file to be opened, such as a lock, would get the number of a stream that is closed,
    # and ranks, which inherit it, would write to it.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r", closefd=False))

    words = sys.argv[1:]
    if command is None:
        command = words.pop(0) if words else "--help"
    if command in ("train", "campaign", "sweep"):
        return explained(lambda: starting_runs(lambda: _run(command, words)))
    return explained(lambda: _run(command, words))


def _run(command: str, words: list[str]) -> int:
    if command in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if command == "--version":
        from rope_exp import __version__

        print(__version__)
        return 0
    from rope_exp.identity import chosen

    module = chosen("commands", command.replace("-", "_"), "command")
    return int(module.main(words))
