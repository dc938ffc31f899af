"""What commands share: the parser, and the configs and folders that they are given."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError

CONFIG_DIR: dict[str, Any] = {"type": Path, "help": "a further folder of groups and their choices"}


class Parser(argparse.ArgumentParser):
    """The argument parser of one command, with one-sentence errors."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"rope-exp {command}", description=description)

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError for a bad command line."""
        raise ConfigError("usage", ..., f"{message}; see `{self.prog} --help`")


def configs_of(parser: Parser, words: list[str], *, sweeps: bool = False) -> list[RunConfig]:
    """Return the configs of a command that takes the overrides of `train`."""
    from rope_exp.compose import compose_jobs

    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as `rope-exp train` takes them"
    )
    parser.add_argument("--config-dir", **CONFIG_DIR)
    if sweeps:
        parser.add_argument(
            "-m", "--multirun", action="store_true", help="several values of a key make a sweep"
        )
    asked = parser.parse_intermixed_args(words)
    multirun = sweeps and asked.multirun
    return compose_jobs(asked.overrides, asked.config_dir, multirun=multirun).configs


def check_is_run(folder: Path) -> None:
    """Refuse a folder that holds no run, before anything in it is read."""
    from rope_exp.folder import CONFIG

    if not (folder / CONFIG).exists():
        raise ConfigError("RUN_FOLDER", str(folder), "there is no run in this folder")
