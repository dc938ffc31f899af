"""The border to Hydra: its mapping becomes a RunConfig, its errors become sentences. DictConfig ends here.

Hydra imports and calls whatever `hydra.*._target_` names, and a resolver such as ${oc.env:TOKEN} puts what it reads
into saved files. So command lines and files are checked before Hydra acts: read_command, check_overrides, check_files.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, RangeSweep
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import known_keys, unknown_key
from rope_exp.system.errors import ConfigError, show
from rope_exp.system.processes import PACKAGE, ROOT

# Beside the package in a checkout, within it where it is installed.
CONFIGS = next(folder for folder in (PACKAGE / "configs", ROOT / "configs") if folder.is_dir())
MAX_RUNS = 10_000  # of one sweep: Hydra composes them all before the first starts
REFERENCE = re.compile(
    r"\$\{(?!hydra)[\w.\[\]]+\}"
)  # to another key: the interpolation that reads nothing else
# Of Hydra's own settings: the keys that a command line may set, and what a file may say.
HYDRA_ON_COMMAND_LINE = re.compile(r"hydra/launcher|hydra\.launcher\.\w+|hydra\.verbose")
HYDRA_IN_FILES = re.compile(
    r"defaults\.override /?hydra/(launcher=\w+|(job|hydra)_logging=none)"
    r"|hydra\.(mode=\w+|sweeper\.params\.(?!.*hydra).*|launcher\..*|help\..*|output_subdir=null|(run\.|sweep\.sub)dir=\."
    r"|sweep\.dir=(\$\{scratch:\}|(?!/|.*\.\.)[\w./-]+))",
    re.DOTALL,
)
MAX_BRACKETS = 50  # of one override: where they nest, Python's stack is the limit
ALIAS = "\0"
SUSPECT = re.compile(
    r"hydra|_target_|[$\\]|\.\."
)  # a file without one of these says nothing that is refused


def to_run_config(values: DictConfig) -> RunConfig:
    """Convert Hydra's composed config, once.

    Raises:
        ConfigError: see RunConfig.from_dict; also an interpolation that reads the environment, which would put what it
            reads into saved files.
    """
    try:
        _refuse_resolvers(OmegaConf.to_container(values, resolve=False), "")
        plain = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise explain(error) from error
    assert isinstance(plain, dict)
    return RunConfig.from_dict({str(key): value for key, value in plain.items()})


def run_config(overrides: Sequence[str]) -> RunConfig:
    """Compose `configs/` with command-line overrides, for scripts and tests.

    Raises:
        ConfigError: one sentence, whatever is wrong with them.
    """
    check_overrides(overrides, [CONFIGS])
    try:
        with initialize_config_dir(version_base=None, config_dir=str(CONFIGS)):
            values = compose("config", overrides=list(overrides))
    except (
        Exception
    ) as error:  # nothing of ours has run: Hydra stumbles in many ways over what it is given
        raise explain(error) from error
    return to_run_config(values)


def explain(error: Exception) -> ConfigError:
    """Hydra's error as one sentence."""
    text = "".join(c if c.isprintable() else " " for c in re.sub(r"\s+", " ", str(error))).strip()
    text = text or type(error).__name__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        if group.startswith("hydra/"):
            return ConfigError(
                group, choice, "this plugin of Hydra is not installed (see README, SLURM)"
            )
        return ConfigError(group, choice, "there is no such choice")
    if isinstance(error, yaml.YAMLError):
        return ConfigError("configs", ..., f"a file there is no YAML: {text}")
    if isinstance(error, RecursionError):
        return ConfigError("configs", ..., "something there holds itself, or is nested too deeply")
    if match := re.search(r"Could not override '([^']*)'", text):
        if (CONFIGS / match[1]).is_dir():
            return ConfigError(
                match[1], ..., f"nothing is chosen there yet; did you mean +{match[1]}=...?"
            )
        return unknown_key(match[1], known_keys(RunConfig))
    if match := re.search(r"Could not append to config. An item is already at '([^']*)'", text):
        return ConfigError(match[1], ..., "is a key already; leave out the +")
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '\W*([^=]*)=", text):
        return ConfigError(
            match[1], ..., "several values make a sweep, which needs -m; a list is written [a,b]"
        )
    if match := re.search(r"Could not delete from config. The value of '([^']*)'", text):
        return ConfigError(match[1], ..., "has another value than the one to be deleted")
    if match := re.search(r"Error merging override \W*([^=]*)=", text):
        return ConfigError(match[1], ..., "cannot take a value of that kind")
    return ConfigError(str(getattr(error, "full_key", None) or "config"), ..., text)


def _refuse_resolvers(node: object, key: str) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            _refuse_resolvers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            _refuse_resolvers(value, key)
    elif isinstance(node, str) and _resolves(node):
        raise ConfigError(
            key, node, "may not read the environment: configs are saved with every run"
        )


def _resolves(text: str) -> bool:
    """Whether it holds an interpolation that is more than a plain reference to another key."""
    return "${" in REFERENCE.sub("", text)


# -- before Hydra acts ------------------------------------------------------------------------------------------------


def read_command(words: Sequence[str]) -> argparse.Namespace:
    """A command line as Hydra's own parser reads it, once it and the files that it composes have been checked.

    Raises:
        ConfigError: see check_overrides and check_files; also flags that are unknown, exclude each other, or would
            have another config or a pickle read.
    """
    parser: Any = get_args_parser()
    parser.error = _refuse_usage
    args: argparse.Namespace = parser.parse_intermixed_args(words)
    if args.experimental_rerun is not None:
        raise ConfigError(
            "--experimental-rerun", ..., "would unpickle a file, and a pickle may run anything"
        )
    if args.config_path is not None or args.config_name not in (None, "config"):
        flag = "--config-name" if args.config_path is None else "--config-path"
        raise ConfigError(
            flag,
            ...,
            "there is one config, configs/config.yaml; --config-dir adds a folder of choices",
        )
    if args.config_dir is not None and not Path(args.config_dir).is_dir():
        raise ConfigError("--config-dir", args.config_dir, "there is no such folder")
    modes = [
        mode
        for mode in ("run", "multirun", "cfg", "info", "shell_completion")
        if getattr(args, mode)
    ]
    if len(modes) > 1:
        raise ConfigError(
            "usage", ..., f"--{modes[0]} and --{modes[1].replace('_', '-')} exclude each other"
        )
    if args.resolve and not (args.cfg or args.help):
        raise ConfigError("usage", ..., "--resolve needs --cfg")
    folders = [CONFIGS, *([] if args.config_dir is None else [Path(args.config_dir)])]
    check_files(folders)
    check_overrides(args.overrides, folders)
    return args


def _refuse_usage(message: str) -> NoReturn:
    raise ConfigError("usage", ..., f"{message}; see `python train.py --help`")


def check_overrides(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Refuse what an override may not ask of Hydra, choices that are not there, and sweeps of no run or of too many.

    Args:
        folders: where the choices of groups are.
    Raises:
        ConfigError: naming the key; a value that cannot be read is not shown, for it may be a secret.
    """
    num_runs = 1
    for override in overrides:
        written, equals, value = override.partition("=")
        key = written.lstrip("+~")
        if not key or not (equals or written.startswith("~")):
            raise ConfigError("override", override, "is not of the form key=value")
        if ("hydra" in key and not HYDRA_ON_COMMAND_LINE.fullmatch(key)) or "_target_" in override:
            allowed = "Hydra's own settings are fixed, but for hydra/launcher, hydra.launcher.* and hydra.verbose"
            raise ConfigError(key, ..., allowed)
        if _resolves(override):
            raise ConfigError(
                key, value, "may not read the environment: configs are saved with every run"
            )
        if override.count("[") + override.count("{") > MAX_BRACKETS:
            raise ConfigError(key, ..., "its value is nested too deeply")
        try:
            parsed = OverridesParser.create().parse_override(override).value()
        except HydraException as error:
            allowed = "its value cannot be read; special characters need quotes of their own, as in \"key='a value'\""
            raise ConfigError(key, ..., allowed) from error
        except ValueError as error:
            raise ConfigError(key, ..., "is a number of too many digits") from error
        num_runs *= _num_values(key, parsed, folders)
        if num_runs > MAX_RUNS:
            raise ConfigError(key, ..., f"makes a sweep of more than {MAX_RUNS:,} runs")


def _num_values(key: str, value: Any, folders: Sequence[Path]) -> int:
    """How many values an override sweeps over. Those of a group must be names of files that are there."""
    group = key.partition("@")[0]
    choices = sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
    if isinstance(value, RangeSweep):
        values = list(islice(value.range(), MAX_RUNS + 1))
    elif isinstance(value, Glob):
        values = value.filter(choices)
    else:
        values = value.list if isinstance(value, ChoiceSweep) else [value]
    if not values:
        among = f" among {', '.join(choices)}" if choices else ""
        raise ConfigError(key, ..., f"the sweep is empty: nothing matches{among}")
    for choice in values if choices else []:
        if (
            getattr(choice, "text", choice) not in choices
        ):  # a quoted one carries its quotes beside its text
            raise ConfigError(
                key, choice, f"there is no such choice; choose one of {', '.join(choices)}"
            )
    return len(values)


def check_files(folders: Iterable[Path]) -> None:
    """Refuse a config file that would have Hydra call or read something, or write where it should not.

    What is no YAML is left to Hydra, which names it where it is chosen.

    Raises:
        ConfigError: naming the file and what stands in it.
    """
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            try:
                text = path.read_text(encoding="utf-8")
                refused = (
                    _refused_in(text)
                    if "hydra" not in str(path.relative_to(folder))
                    else "is in Hydra's own group"
                )
            except (OSError, UnicodeError, yaml.YAMLError):
                continue
            except RecursionError:
                refused = "is nested too deeply"
            if refused:
                raise ConfigError(str(path), ..., refused)


def _refused_in(text: str) -> str | None:
    """What a file says and may not, or None: in YAML's own reading, so that no way of writing hides it."""
    if text.startswith("\ufeff"):
        return "begins with a byte order mark, which hides its first line; save it as UTF-8 without one"
    if not SUSPECT.search(text):
        return None
    if re.search(r"^\s*#.*@.*hydra", text, re.MULTILINE):
        return "may not put its keys among Hydra's own"
    for key, value in _leaves(yaml.compose(text, Loader=yaml.SafeLoader), "", set()):
        if value == ALIAS or "<<" in key:
            return f"repeats an anchor (& and *) or merges (<<) at {show(key)}; write it out"
        where = f"says {show(value)} at {show(key)}"
        ours = HYDRA_IN_FILES.fullmatch(f"{key}={value}") is not None
        if "_target_" in key + value:
            return f"{where}; no config may name code to call"
        if ("hydra" in key and not ours) or (
            key.startswith("defaults") and re.search(r"hydra|\.\.", value)
        ):
            return f"{where}; Hydra's own settings and the folders of choices are fixed"
        if _resolves(value) and not ours:
            return f"{where}; configs may not read the environment, since they are saved with every run"
    return None


def _leaves(node: yaml.Node | None, key: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Every scalar under the path of its keys; ALIAS where an anchor is repeated, perhaps within itself."""
    if isinstance(node, yaml.ScalarNode):
        yield key, str(node.value)
    elif node is not None and id(node) in seen:
        yield key, ALIAS
    elif node is not None:
        seen.add(id(node))
        for child in node.value:
            if isinstance(node, yaml.MappingNode):
                yield from _leaves(
                    child[1], f"{key}.{child[0].value}" if key else str(child[0].value), seen
                )
            else:
                yield from _leaves(child, key, seen)
