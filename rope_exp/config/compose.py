"""The border to Hydra: it composes, we check the composed tree, and it becomes a RunConfig.

Hydra imports and calls whatever `hydra.*._target_` names, and a resolver such as ${oc.env:TOKEN}
puts what it reads into saved files. So Hydra only ever composes here; nothing of it is run before
every job has been composed and checked, its own `hydra` node included. DictConfig ends here.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra.version
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rope_exp.config.overrides import CAMPAIGNS, check_overrides
from rope_exp.config.run import RunConfig
from rope_exp.config.schema import fill, has_aliases
from rope_exp.system.errors import ConfigError, first_line
from rope_exp.system.processes import PACKAGE, ROOT

# Beside the package in a checkout, within it where it is installed.
CONFIGS = next(folder for folder in (PACKAGE / "configs", ROOT / "configs") if folder.is_dir())

# Of an override, what the name of a run says anyway.
IN_NAME = re.compile(r"\+*(pe[=.]|seed=)")

# To another key: the interpolation that reads nothing else. Only Hydra's node may name Hydra's.
REFERENCE = re.compile(r"\$\{(?!hydra)[\w.\[\]]+\}")
REFERENCE_IN_HYDRA = re.compile(r"\$\{[\w.\[\]]+\}")

# What the composed `hydra` node may hold: what cannot call, write or read anything may say what it
# will, the rest says what configs/config.yaml says.
HYDRA = re.compile(
    r"hydra\.("
    r"(mode|verbose.*|(hydra_)?help\..*|overrides\..*|runtime\..*)=.*"
    r"|job\.(name|id|num|config_name|override_dirname|config\..*)=.*"
    r"|(sweeper\.params|launcher)\.(?!.*_target_).*=.*"
    r"|sweeper\.params=None"
    r"|sweeper\._target_=hydra\._internal\.core_plugins\.basic_sweeper\.BasicSweeper"
    r"|launcher\._target_=hydra(\._internal\.core_plugins\.basic_launcher|_plugins\.[\w.]+)\.\w+Launcher"
    r"|sweep\.dir=(?!/|.*\.\.)[\w./-]+"
    r"|(run\.|sweep\.sub)dir=\."
    r"|(output_subdir|job\.chdir|sweeper\.max_batch_size|(hydra|job)_logging\.root)=None"
    r"|(hydra|job)_logging\.(version=1|disable_existing_loggers=False)"
    r")",
    re.DOTALL,
)


@dataclass(frozen=True)
class Jobs:
    """What a command line asks for: composed, checked and converted.

    Attributes:
        loader: what composed them.
        tree: the config without what is swept over, with Hydra's own node.
        overrides: those of each job, as Hydra's launchers take them.
        configs: one of each job, in the same order.
    """

    loader: ConfigLoaderImpl
    tree: DictConfig
    overrides: list[list[str]]
    configs: list[RunConfig]

    @property
    def titles(self) -> list[str]:
        """What a person calls each: its variant and seed, and between them what else is swept."""
        swept = [len(set(values)) > 1 for values in zip(*self.overrides, strict=True)]
        titles = []
        for words, config in zip(self.overrides, self.configs, strict=True):
            told = [word for word, differs in zip(words, swept, strict=True) if differs]
            others = [word.lstrip("+") for word in told if not IN_NAME.match(word)]
            titles.append("-".join([config.pe.label, *others, f"s{config.seed}"]))
        return titles

    @property
    def have_launcher(self) -> bool:
        """Whether they are to be handed to another launcher than this process."""
        return "basic_launcher" not in self.tree.hydra.launcher._target_

    @property
    def have_references(self) -> bool:
        """Whether the value of some key of ours is that of another."""
        ours: Any = OmegaConf.to_container(self.tree, resolve=False)
        ours.pop("hydra", None)
        return "${" in json.dumps(ours, default=str)


def compose_jobs(
    words: Sequence[str], config_dir: Path | None = None, *, multirun: bool = False
) -> Jobs:
    """Compose and check every job of a command line.

    Args:
        words: the overrides; where the config says so, a sweep, as `multirun` makes it one.
        config_dir: a further folder of groups and their choices.
    Raises:
        ConfigError: one sentence, whatever is wrong with the words or with a file.
    """
    loader = config_loader(config_dir)
    overrides = check_overrides(words, loader)
    swept = [each for each in overrides if each.is_sweep_override()]
    fixed = [str(each.input_line) for each in overrides if each not in swept]
    tree = compose_tree(fixed, loader)

    if not (multirun or tree.hydra.mode == RunMode.MULTIRUN):
        if swept:
            raise ConfigError(
                swept[0].key_or_group,
                ...,
                "several values make a sweep, which needs -m; a list is written [a,b]",
            )
        return Jobs(loader, tree, [fixed], [to_run_config(tree)])

    # Hydra's own settings were checked in the tree, and say nothing of a job.
    params = [f"{key}={value}" for key, value in (tree.hydra.sweeper.params or {}).items()]
    overrides = check_overrides([*params, *words], loader)
    ours = [each for each in overrides if not each.is_hydra_override()]
    [jobs] = BasicSweeper.split_arguments(ours, max_batch_size=None)
    return Jobs(loader, tree, jobs, [to_run_config(compose_tree(job, loader)) for job in jobs])


def run_config(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """Compose the one run of a command line, or the first of a sweep.

    Raises:
        ConfigError: see compose_jobs.
    """
    return compose_jobs(overrides, config_dir).configs[0]


def config_loader(config_dir: Path | None) -> ConfigLoaderImpl:
    """Return what composes from our folder of groups and, where there is one, a further folder.

    From now on no config can read the environment.

    Raises:
        ConfigError: there is no such folder, a file would unfold to any size, or one has the name
            of a choice of ours.
    """
    hydra.version.setbase(None)
    setup_globals()
    OmegaConf.clear_resolver("oc.env")
    JobRuntime().set("name", "train")

    search_path = create_config_search_path(str(CONFIGS))
    _check_files(CONFIGS)
    if config_dir is not None:
        folder = config_dir.absolute()
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
        if not folder.is_dir():
            raise ConfigError("--config-dir", str(config_dir), "there is no such folder")
        _check_files(folder)
        _check_names(folder, config_dir)
    return ConfigLoaderImpl(search_path)


def _check_names(folder: Path, config_dir: Path) -> None:
    """Refuse another choice under a name of ours, since Hydra would silently leave it out.

    Of campaigns, which Hydra does not compose, the user's own comes first.
    """
    for ours in sorted(CONFIGS.rglob("*.yaml")):
        choice = ours.relative_to(CONFIGS)
        theirs = folder / choice
        if choice.parts[0] == CAMPAIGNS or not os.path.lexists(theirs):
            continue
        if not theirs.is_file() or theirs.read_bytes() != ours.read_bytes():
            raise ConfigError(
                "--config-dir",
                str(config_dir),
                f"its {choice} has the name of a choice that is there already: give it another",
            )


def _check_files(folder: Path) -> None:
    """Refuse a file that repeats an anchor, in folders that are linked, too."""
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        # A link may lead back.
        if os.path.realpath(root) in seen:
            folders.clear()
        seen.add(os.path.realpath(root))

        for path in (Path(root, name) for name in names if name.endswith(".yaml")):
            # What is no YAML is named when it is chosen.
            with suppress(OSError, UnicodeError, yaml.YAMLError):
                if has_aliases(path.read_text(encoding="utf-8")):
                    raise ConfigError(
                        str(path),
                        ...,
                        "repeats an anchor (& and *), which can unfold to any size; write it out",
                    )


def compose_tree(overrides: list[str], loader: ConfigLoaderImpl) -> DictConfig:
    """Compose the overrides of one job, and check what came of them.

    Raises:
        ConfigError: naming a file that is none, or what `check_tree` refuses.
    """
    try:
        tree = loader.load_configuration("config", overrides, run_mode=RunMode.RUN)
    except Exception as error:
        # Nothing of ours has run: Hydra stumbles in many ways over what it is given.
        raise explain(error) from error
    check_tree(tree)
    return tree


def check_tree(tree: DictConfig) -> None:
    """Refuse a composed tree that would call something, read the environment, or change Hydra.

    Raises:
        ConfigError: naming the key.
    """
    plain: Any = OmegaConf.to_container(tree, resolve=False)
    # Last, since Hydra's node repeats the command line: what is wrong there has a name of its own.
    plain["hydra"] = plain.pop("hydra", None)
    _check_leaves(plain, "")


def _check_leaves(node: object, key: str) -> None:
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for name, below in items:
            _check_leaves(below, f"{key}.{name}".lstrip("."))
        return

    is_hydras = key.startswith("hydra.")
    if is_hydras:
        if not HYDRA.fullmatch(f"{key}={node}"):
            raise ConfigError(key, ..., "is one of Hydra's own settings, and those are fixed")
    elif "_target_" in key:
        raise ConfigError(key, ..., "no config may name code to call")
    reference = REFERENCE_IN_HYDRA if is_hydras else REFERENCE
    if isinstance(node, str) and "${" in reference.sub("", node):
        raise ConfigError(
            key, node, "may not read the environment: configs are saved with every run"
        )


def to_run_config(values: DictConfig) -> RunConfig:
    """Convert a composed config, once.

    Raises:
        ConfigError: see RunConfig.from_dict.
    """
    return RunConfig.from_dict(to_plain(values))


def to_plain(values: DictConfig, *, resolve: bool = True) -> Any:
    """Return a composed config as a plain mapping of every key, without Hydra's node.

    Defaults are filled in first, so that a reference may name a key that no file mentions.

    Raises:
        ConfigError: a reference names no key, or a value is missing.
    """
    plain: Any = OmegaConf.to_container(values, resolve=False)
    plain.pop("hydra", None)
    tree = fill(RunConfig, plain)
    try:
        return OmegaConf.to_container(
            OmegaConf.create(tree), resolve=resolve, throw_on_missing=True
        )
    except Exception as error:
        raise explain(error) from error


def explain(error: Exception) -> ConfigError:
    """Return Hydra's error as one sentence."""
    # Of what cannot be merged, OmegaConf knows the key.
    cause = error.__cause__ or error
    text = "".join(c if c.isprintable() else " " for c in first_line(cause))

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        allowed = "there is no such choice"
        if group.startswith("hydra/"):
            allowed = "this plugin of Hydra is not installed (SLURM's: pip install '.[slurm]')"
        return ConfigError(group, choice, allowed)
    if isinstance(error, yaml.YAMLError):
        return ConfigError("configs", ..., f"a file there is no YAML: {text}")
    if match := re.search(r"Could not override '([^']*)'", text):
        allowed = f"nothing is chosen there yet; did you mean +{match[1]}=...?"
        return ConfigError(match[1], ..., allowed)

    return ConfigError(getattr(cause, "full_key", None) or "config", ..., text)
