"""The parser of one command, and the configs and folders that commands are given."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from rope_exp.compose import Composed, compose_runs
from rope_exp.errors import ConfigError

DEFAULT_RECORDS = Path("results/records")
CONFIG_DIR: dict[str, Any] = {"type": Path, "help": "a further folder of groups and their choices"}


class Parser(argparse.ArgumentParser):
    """The argument parser of one command, with one-sentence errors."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"rope-exp {command}", description=description)

    def add_trust_code(self) -> None:
        """Add the flag of commands that build the model of a run."""
        about = "execute the run's own code (pe.code), also if it is not below results/runs"
        self.add_argument("--trust-code", action="store_true", help=about)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError for a bad command line."""
        raise ConfigError("usage", ..., f"{message}; see `{self.prog} --help`")


def parse_runs(
    parser: Parser, argv: list[str], *, multirun: bool = False
) -> tuple[argparse.Namespace, Composed]:
    """Parse the command line of a command that takes the overrides of `train`.

    Args:
        parser: has the command's other arguments; the overrides, -m and --config-dir are added.
        argv: the words after the command's name.
        multirun: the command is a sweep, also without -m.
    Returns:
        The parsed arguments, and the runs of the overrides.
    Raises:
        ConfigError: for a mistake in the command line or in a run's config.
    """
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as `rope-exp train` takes them"
    )
    parser.add_argument("-m", "--multirun", action="store_true", help="a sweep of several values")
    parser.add_argument("--config-dir", **CONFIG_DIR)
    args = parser.parse_intermixed_args(argv)
    multirun = multirun or args.multirun
    return args, compose_runs(args.overrides, args.config_dir, multirun=multirun)
