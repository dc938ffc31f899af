"""The flags of `rope-exp train`, and what those that start no run print."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra.version
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from rope_exp.config.compose import CONFIGS, compose_jobs, config_loader, to_plain
from rope_exp.config.overrides import CAMPAIGNS
from rope_exp.system.errors import ConfigError

HELP = """\
Train a small decoder with rotary position embedding on any subset of {q, k, v, o}, or a sweep.

  python train.py pe=vo_rope                            one run
  python train.py -m 'pe=glob(*)' seed=0,1,2            a sweep: every value with every other
  python train.py +experiment=nine                      the nine: a sweep of configs/experiment
  python train.py model=1b data=files data.path=TEXT    group=choice, then key=value
  python train.py --cfg job                             every key and its value
  python -m rope_exp campaign NAME                      the runs of configs/campaign/NAME.yaml
  python scripts/plan.py model=1b                       what a config costs before it runs
  python scripts/report.py                              the table of the runs that are done

Groups and their choices (another folder of them: --config-dir FOLDER):

$CHOICES
Exit codes: 0 done; 1 failed, or some run of a sweep did; 2 bad config or usage, said in one
sentence; 3 diverged; 75 stopped, and the same command goes on. More in README.md."""

# Flags of Hydra's that are none of ours.
ONE_CONFIG = "there is one config, configs/config.yaml; --config-dir adds a folder of choices"
REFUSED = {
    "experimental_rerun": "would unpickle a file, and a pickle may run anything",
    "config_path": ONE_CONFIG,
    "config_name": ONE_CONFIG,
    "package": "every key is printed",
}


def read_command(words: Sequence[str]) -> argparse.Namespace:
    """Return a command line as Hydra's own parser reads it.

    Raises:
        ConfigError: a flag is unknown, excludes another, or would have another config or a pickle
            read.
    """
    parser: Any = get_args_parser()
    parser.error = _refuse_usage
    command: argparse.Namespace = parser.parse_intermixed_args(words)

    # To name the one config is no harm.
    for name, allowed in REFUSED.items():
        if getattr(command, name) not in (None, "config"):
            raise ConfigError(f"--{name.replace('_', '-')}", ..., allowed)

    names = ("run", "multirun", "cfg", "info", "shell_completion")
    modes = [name for name in names if getattr(command, name)]
    if len(modes) > 1:
        raise ConfigError("usage", ..., f"--{modes[0]} and --{modes[1]} exclude each other")
    if command.resolve and not command.cfg:
        raise ConfigError("usage", ..., "--resolve needs --cfg")

    command.config_dir = command.config_dir and Path(command.config_dir)
    return command


def _refuse_usage(message: str) -> NoReturn:
    raise ConfigError("usage", ..., f"{message}; see `python train.py --help`")


def show(command: argparse.Namespace) -> bool:
    """Print what a command line asks for, or return False: it starts runs.

    Raises:
        ConfigError: its overrides are refused, as those of a run are.
    """
    if command.help:
        print(HELP.replace("$CHOICES", _choices(command.config_dir)))
    elif command.shell_completion:
        _ask_hydra(command)
    elif command.hydra_help or command.info or command.cfg:
        # Hydra composes once more, and would call what the config names: so it is checked first.
        tree = compose_jobs(command.overrides, command.config_dir).tree
        if command.cfg == "job":
            # Before any `auto` is resolved.
            print(OmegaConf.to_yaml(to_plain(tree, resolve=command.resolve)), end="")
        else:
            checked = tree.hydra.overrides
            command.overrides = [*checked.hydra, *checked.task]
            _ask_hydra(command)
    else:
        return False
    return True


def _choices(config_dir: Path | None) -> str:
    """Return a line for each group."""
    configs = config_loader(config_dir).repository
    lines = ""
    for group in configs.get_group_options("", ObjectType.GROUP):
        if group in ("hydra", CAMPAIGNS):
            continue
        choices = configs.get_group_options(group)
        if choices:
            lines += f"{group}: {', '.join(choices)}\n"
        # A group of groups, of which nothing is chosen unless it is added.
        for inner in configs.get_group_options(group, ObjectType.GROUP):
            choices = configs.get_group_options(f"{group}/{inner}")
            lines += f"+{group}/{inner}: {', '.join(choices)}\n"
    return lines


def _ask_hydra(command: argparse.Namespace) -> None:
    """Have Hydra itself answer: --hydra-help, --info, --cfg hydra|all, --shell-completion."""
    # It prints through logging, which would show a traceback a line once nobody reads.
    logging.raiseExceptions = False
    hydra.version.setbase(None)
    _run_hydra(command, get_args_parser(), _ask_hydra, str(CONFIGS), "config")
