"""Composition of a RunConfig by Hydra, from the files of configs/ and a command line.

Errors of Hydra become one sentence that names the key, and the nearest name.

The defaults of the dataclasses are registered with Hydra, so that it knows every key. A DictConfig
is converted here, once; the rest of the package never sees one.
"""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from glob import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError, first_line
from rope_exp.identity import chosen, defaults_of, known_keys, names_of, unknown_key
from rope_exp.machine import PACKAGE, ROOT

# Beside the package in a checkout; inside it in an installation.
CONFIGS = next(folder for folder in (PACKAGE / "configs", ROOT / "configs") if folder.is_dir())
HYDRA_VERSION = "1.3"  # version_base, which selects Hydra's behaviour
# A folder of configs that are not parts of a run's config.
CAMPAIGNS = "campaign"
# Hydra's sentences that name a key, and ours for the same.
REASONS = {
    r"(?:Ambiguous value for argument|Sweep parameters) '\+*([^=']*)=": (
        "several values make a sweep, which needs -m; a list is written [a,b]"
    ),
    r"Could not append to config\. An item is already at '([^']*)'": (
        "is a key already; leave out the +"
    ),
}

# Overrides that the name of a run contains anyway.
IN_NAME = re.compile(r"\+*(pe[=.]|seed=)")
# Names of environment variables with secret values, which are never saved.
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


def store_defaults() -> None:
    """Register the default of every key with Hydra.

    `run_defaults` is merged first. A section that may be one of several dataclasses gets its keys
    from the file of its choice, e.g. configs/attn/mla.yaml. It stays open (no struct flag), so that
    its keys can be overridden even if a file leaves them out.
    """
    store = ConfigStore.instance()
    defaults: dict[str, Any] = defaults_of(RunConfig)
    for field in fields(RunConfig):
        if "one_of" in field.metadata:
            defaults[field.name] = OmegaConf.create({}, flags={"struct": False})
            # Files of choices written for version 0.2.0 merge these.
            for name in names_of(field):
                store.store(f"{field.name}_{name}", {}, provider="rope_exp")
    store.store("run_defaults", OmegaConf.create(defaults), provider="rope_exp")


store_defaults()


# -- from a tree to a config ---------------------------------------------------------------------


def to_run_config(tree: DictConfig, hydra: Any = None) -> RunConfig:
    """Convert a composed config, once.

    `${oc.env:NAME}` becomes its value. If the name looks secret it stays unresolved, because
    configs are saved with every run.

    Args:
        hydra: Hydra's own node, if the tree has none.
    Raises:
        ConfigError: a mistake, also in the file of `pe.code`.
    """
    try:
        with _secrets_kept():
            ours = without_hydra(tree)
            plain: Any = OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)
    except Exception as error:
        raise explain(error) from error
    if CAMPAIGNS in plain:
        raise _unknown(CAMPAIGNS)
    config = RunConfig.from_dict(plain)
    if config.model.match_params is not None:
        # Imported late: a mistake is told before torch is imported, which takes two seconds.
        from rope_exp.costs import with_matched

        config = with_matched(config)
    if config.pe.code is None or config.pe.source is not None:
        return config
    own = chosen("position", "own", "pe.code")
    found: RunConfig = own.with_source(config, [CONFIGS, *_own_folders(hydra or tree.hydra)])
    return found


def without_hydra(tree: DictConfig) -> DictConfig:
    """Return a copy of a composed config without Hydra's own node."""
    return OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"])


@contextlib.contextmanager
def _secrets_kept() -> Iterator[None]:
    """Resolve environment variables except secrets."""

    def read(name: str, *default: str | None) -> Any:
        return f"${{oc.env:{name}}}" if SECRET.search(name) else oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", read, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def check_folders(tree: DictConfig) -> None:
    """Refuse additional folders with a different choice under one of our names."""
    for folder in _own_folders(tree.hydra):
        if folder.is_dir():
            check_folder(folder)


def _own_folders(hydra: Any) -> list[Path]:
    """Return the user's folders of configs, from Hydra's own node."""
    sources = hydra.runtime.config_sources
    own = [each for each in sources if each.provider not in ("hydra", "main")]
    return [Path(each.path) for each in own if each.schema == "file"]


def check_folder(folder: Path) -> None:
    """Refuse a folder that does not exist, or has a different choice under one of our names.

    Hydra would silently ignore one of the two. Campaigns may reuse our names, because Hydra does
    not read them.
    """
    if not folder.is_dir():
        raise ConfigError("--config-dir", str(folder), "there is no such folder")
    for ours in sorted([*CONFIGS.rglob("*.yaml"), *CONFIGS.glob("*.py")]):
        choice = ours.relative_to(CONFIGS)
        # Hydra ignores files with the suffix .yml, and links that lead nowhere.
        for theirs in (folder / choice, folder / choice.with_suffix(".yml")):
            is_same = theirs.is_file() and theirs.read_bytes() == ours.read_bytes()
            if os.path.lexists(theirs) and not is_same and choice.parts[0] != CAMPAIGNS:
                name = theirs.relative_to(folder)
                reason = f"its {name} has the name of a choice of ours: give it another"
                raise ConfigError("--config-dir", str(folder), reason)


def titles(overrides: Sequence[Sequence[str]], configs: Sequence[RunConfig]) -> list[str]:
    """Return a title for each job: its variant, its seed and other swept values.

    Args:
        overrides: the words of each job.
    """
    swept = [len(set(values)) > 1 for values in zip(*overrides, strict=True)]
    found = []
    for words, config in zip(overrides, configs, strict=True):
        told = itertools.compress(words, swept)
        others = [word.lstrip("+") for word in told if not IN_NAME.match(word)]
        found.append("-".join([config.pe.label, *others, f"s{config.seed}"]))
    return found


# -- composition in Python -----------------------------------------------------------------------


@dataclass(frozen=True)
class Jobs:
    """The jobs of a command line.

    Attributes:
        tree: the config without swept overrides, with Hydra's own node.
        overrides: of each job.
        configs: of each job, in the same order.
    """

    tree: DictConfig
    overrides: list[list[str]]
    configs: list[RunConfig]

    @property
    def have_launcher(self) -> bool:
        """True if the config asks for a launcher of another package."""
        return not re.search("basic_launcher|rope_exp", self.tree.hydra.launcher._target_)

    @property
    def have_references(self) -> bool:
        """True if the value of one of our keys refers to another key."""
        ours: Any = OmegaConf.to_container(self.tree, resolve=False)
        ours.pop("hydra")
        return "${" in json.dumps(ours, default=str)


def run_config(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """Compose the only run of a command line, or the first run of a sweep.

    Raises:
        ConfigError: see compose_jobs.
    """
    return compose_jobs(overrides, config_dir).configs[0]


def compose_jobs(
    words: Sequence[str], config_dir: Path | None = None, *, multirun: bool = False
) -> Jobs:
    """Compose every job of a command line, as `train` does, without running any.

    Args:
        words: the overrides; a sweep if `multirun` is true or the config says so.
        config_dir: an additional folder of groups and their choices.
    Raises:
        ConfigError: one sentence about any error in the words or in a file.
    """
    search = []
    if config_dir is not None:
        check_folder(config_dir)
        search = [f"hydra.searchpath=[{json.dumps(f'file://{config_dir.absolute()}')}]"]

    try:
        with initialize_config_dir(str(CONFIGS), job_name="train", version_base=HYDRA_VERSION):
            loader = GlobalHydra.instance().config_loader()
            options = partial(loader.get_group_options, config_name="config", overrides=search)
            parser = OverridesParser.create(SimpleNamespace(get_group_options=options))  # type: ignore[arg-type]

            def composed(words: Sequence[str]) -> DictConfig:
                return compose("config", [*search, *words], return_hydra_config=True)

            parsed = parser.parse_overrides(list(words))
            swept = [each for each in parsed if each.is_sweep_override()]
            for each in swept:
                if each.is_hydra_override():
                    key = each.key_or_group
                    reason = f"is no sweep; write one value with commas as '{key}=\"a,b\"'"
                    raise ConfigError(key, each.get_value_string(), reason)
            jobs = [[str(each.input_line) for each in parsed if each not in swept]]
            tree = composed(jobs[0])
            trees = [tree]

            if multirun or tree.hydra.mode == RunMode.MULTIRUN:
                params = (tree.hydra.sweeper.params or {}).items()
                parsed = parser.parse_overrides([*(f"{k}={value}" for k, value in params), *words])
                jobs = split([each for each in parsed if not each.is_hydra_override()])
                trees = [composed(job) for job in jobs]
            elif swept:
                # Hydra raises the error about several values.
                composed(words)
    except Exception as error:
        raise explain(error, words) from error

    check_folders(tree)
    return Jobs(tree, jobs, [to_run_config(each) for each in trees])


def split(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the words of each job of a sweep: all combinations, with the last key fastest.

    A later word for a key replaces an earlier one, as in Hydra's basic sweeper.
    """
    words = {}
    for override in overrides:
        key = override.get_key_element()
        is_swept = override.is_discrete_sweep()
        values = (
            override.sweep_string_iterator() if is_swept else [override.get_value_element_as_str()]
        )
        words[key] = [f"{key}={value}" for value in values]
        if not words[key]:
            raise ConfigError(key, ..., "the sweep is empty: no choice matches")
    return [list(job) for job in itertools.product(*words.values())]


# -- mistakes ------------------------------------------------------------------------------------


def explain(error: Exception, words: Sequence[str] = ()) -> ConfigError:
    """Convert an error of Hydra, OmegaConf or PyYAML into one sentence.

    A value that cannot be parsed, or has an unknown key, is not shown: it may be a secret.

    Args:
        words: of the command line, for an error that names none of them.
    """
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(error)

    text = " ".join(str(error).split())
    for pattern, reason in REASONS.items():
        if match := re.search(pattern, text):
            return ConfigError(match[1], ..., reason)
    if match := re.search(r"Could not override '([^']*)'", text):
        return _unknown(match[1], text)
    if type(error) in (ValueError, RecursionError):
        for word in words:
            if refusal := _misread(word):
                return refusal

    # OmegaConf knows the key of a value that cannot be merged.
    cause = error.__cause__ or error
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return ConfigError(mark.name, ..., f"is no YAML: {error.problem}, line {mark.line + 1}")
    reason = "".join(c if c.isprintable() else " " for c in first_line(cause))
    key = getattr(cause, "full_key", None) or "config"
    return ConfigError(key, ..., reason.partition(" full_key: ")[0])


def _unreadable(word: str) -> ConfigError:
    """Return the error for a word that Hydra's grammar rejects."""
    key, equals, _ = word.partition("=")
    key = key.lstrip("+~")
    if not (key and equals):
        return ConfigError("override", word, "is not of the form key=value")
    reason = "its value cannot be read; special characters need quotes of their own, as in "
    return ConfigError(key, ..., f"{reason}\"key='a value'\"")


def _misread(word: str) -> ConfigError | None:
    """Return the error for a word that Hydra cannot parse, or that chooses no file."""
    if "=" not in word or word.startswith("-"):
        return None
    try:
        override = OverridesParser.create().parse_overrides([word])[0]
    except (HydraException, ValueError, RecursionError):
        return _unreadable(word)
    group, value = override.key_or_group, override.value()
    if is_dataclass(getattr(RunConfig, group, None)) and not isinstance(value, str | list):
        return ConfigError(group, value, "must be the name of a choice")
    return None


def _missing(error: MissingConfigException) -> ConfigError:
    """Return the error for a choice that is missing from its group."""
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    options = [str(option) for option in error.options or ()]
    reason = "there is no such choice"
    # A choice of one's own lies in a folder that the command has not named.
    own = sorted(Path().glob(f"*/{escape(f'{group}/{choice}.yaml')}"))
    if group.startswith("hydra/"):
        install = "`pip install hydra-submitit-launcher`"
        reason = f"this plugin of Hydra is not installed (SLURM's: {install})"
    elif own:
        reason += f" without --config-dir {own[0].parts[0]}, which holds {own[0]}"
    elif near := get_close_matches(choice, options, n=1):
        reason += f"; did you mean {near[0]}?"
    elif options:
        reason += f"; choose one of {', '.join(options)}"
    return ConfigError(group or "config", choice, reason)


def _unknown(key: str, text: str = "") -> ConfigError:
    """Return the error for an unknown key, or for a group without a choice."""
    if not key:
        return _unreadable("=")
    if key == CAMPAIGNS:
        return ConfigError(key, ..., "is no key of a run; `rope-exp campaign NAME` runs one")
    if "No match in the defaults list" in text:
        return ConfigError(key, ..., f"nothing is chosen there yet; did you mean +{key}=...?")
    known = known_keys(RunConfig)
    return unknown_key(key, known | {each.partition(".")[0] for each in known})
