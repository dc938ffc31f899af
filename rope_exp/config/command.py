"""The flags of `rope-exp train`, and what those that start no run print."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from rope_exp.config.compose import CONFIGS, compose_jobs, config_folders, to_plain
from rope_exp.config.overrides import check_overrides
from rope_exp.system.errors import ConfigError

HELP = """\
Train a small decoder with rotary position embedding on any subset of {q, k, v, o}, or a sweep.

  python train.py pe=vo_rope                            one run
  python train.py -m 'pe=glob(*)' seed=0,1,2            a sweep: every value with every other
  python train.py +experiment=nine                      the nine: a sweep of configs/experiment
  python train.py model=1b data=files data.path=TEXT    group=choice, then key=value
  python train.py --cfg job                             every key and its value
  python scripts/plan.py model=1b                       what a config costs before it runs
  python scripts/report.py                              the table of the runs that are done

Groups and their choices (another folder of them: --config-dir FOLDER):

$CHOICES
Exit codes: 0 done; 1 failed, or some run of a sweep did; 2 bad config or usage, said in one
sentence; 3 diverged; 75 stopped, and the same command goes on. More in README.md."""


def read_command(words: Sequence[str]) -> argparse.Namespace:
    """Return a command line as Hydra's own parser reads it.

    Raises:
        ConfigError: a flag is unknown, excludes another, or would have another config or a pickle
            read.
    """
    parser: Any = get_args_parser()
    parser.error = _refuse_usage
    command: argparse.Namespace = parser.parse_intermixed_args(words)

    if command.experimental_rerun is not None:
        allowed = "would unpickle a file, and a pickle may run anything"
        raise ConfigError("--experimental-rerun", ..., allowed)
    if command.config_path is not None or command.config_name not in (None, "config"):
        flag = "--config-name" if command.config_path is None else "--config-path"
        allowed = "there is one config, configs/config.yaml; --config-dir adds a folder of choices"
        raise ConfigError(flag, ..., allowed)

    names = ("run", "multirun", "cfg", "info", "shell_completion")
    modes = [name.replace("_", "-") for name in names if getattr(command, name)]
    if len(modes) > 1:
        raise ConfigError("usage", ..., f"--{modes[0]} and --{modes[1]} exclude each other")
    if command.resolve and not (command.cfg or command.help):
        raise ConfigError("usage", ..., "--resolve needs --cfg")

    command.config_dir = None if command.config_dir is None else Path(command.config_dir)
    command.starts_runs = not (
        command.help or command.hydra_help or modes[:1] not in ([], ["run"], ["multirun"])
    )
    return command


def _refuse_usage(message: str) -> NoReturn:
    raise ConfigError("usage", ..., f"{message}; see `python train.py --help`")


def show(command: argparse.Namespace) -> None:
    """Print what a command line that starts no run asks for.

    Raises:
        ConfigError: its overrides are refused, as those of a run are.
    """
    if command.help:
        print(HELP.replace("$CHOICES", _choices(command.config_dir)))
    elif command.shell_completion:
        _ask_hydra(command, command.overrides)
    elif command.cfg == "job":
        print(_config_as_yaml(command), end="")
    else:
        # Hydra composes once more, and would call what the config names: so it is checked first.
        compose_jobs(command.overrides, command.config_dir)
        _ask_hydra(command, check_overrides(command.overrides, config_folders(command.config_dir)))


def _choices(config_dir: Path | None) -> str:
    """Return a line for each group."""
    choices: dict[str, set[str]] = {}
    for folder in config_folders(config_dir):
        for path in folder.glob("*/*.yaml"):
            choices.setdefault(path.parent.name, set()).add(path.stem)
    return "".join(f"{group}: {', '.join(sorted(choices[group]))}\n" for group in sorted(choices))


def _config_as_yaml(command: argparse.Namespace) -> str:
    """Return every key of the config and its value, before any `auto` is resolved."""
    tree = compose_jobs(command.overrides, command.config_dir).tree
    config = OmegaConf.create(to_plain(tree, resolve=command.resolve))
    if command.package in (None, "_global_"):
        return OmegaConf.to_yaml(config)

    part = OmegaConf.select(config, command.package)
    if part is None:
        raise ConfigError("--package", command.package, "there is no such group of keys")
    if not OmegaConf.is_config(part):
        return f"{part}\n"
    return f"# @package {command.package}\n{OmegaConf.to_yaml(part)}"


def _ask_hydra(command: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Have Hydra itself answer: --hydra-help, --info, --cfg hydra|all, --shell-completion."""
    # It reads the command line itself, and takes no flag between overrides.
    flags = [word for word in sys.argv[1:] if word not in command.overrides]
    sys.argv[1:] = [*flags, *overrides]
    # It prints through logging, which would show a traceback a line once nobody reads.
    logging.raiseExceptions = False
    answer: Any = hydra.main(version_base=None, config_path=str(CONFIGS), config_name="config")
    answer(_ask_hydra)()
