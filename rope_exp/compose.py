"""Composition of a RunConfig by Hydra, from the files of configs/ and a command line.

Errors of Hydra become one sentence that names the key, and the nearest name. A DictConfig is
converted here, once; the rest of the package never sees one.
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

from rope_exp.config import RunConfig, flat
from rope_exp.errors import ConfigError, first_line
from rope_exp.identity import chosen, unknown_key
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
    r"Could not override '([^']+)'\. No match in the defaults list": (
        "nothing is chosen there yet; a + in front chooses"
    ),
}
# Overrides that the name of a run contains anyway.
IN_NAME = re.compile(r"\+*(pe[=.]|seed=)")
# Names of environment variables with secret values, which are never saved.
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)

# Hydra knows every key, because configs/config.yaml merges this first.
DEFAULTS: dict[str, Any] = RunConfig().to_dict()
# `DataConfig` filled it in; null lets each kind of data name itself.
DEFAULTS["data"]["name"] = None
KEYS = [*flat(DEFAULTS), *DEFAULTS]
for field in fields(RunConfig):
    if "one_of" in field.metadata:
        # The file of a choice lists its keys, e.g. configs/attn/mla.yaml. The section stays open
        # (no struct flag), so that keys can be overridden even if a file leaves them out.
        DEFAULTS[field.name] = OmegaConf.create({}, flags={"struct": False})
ConfigStore.instance().store("run_defaults", OmegaConf.create(DEFAULTS), provider="rope_exp")


def to_run_config(tree: DictConfig, hydra: Any = None) -> RunConfig:
    """Convert a composed config, once, with the file of `pe.code`.

    `${oc.env:NAME}` becomes its value. If the name looks secret it stays unresolved, because
    configs are saved with every run.

    Args:
        hydra: Hydra's own node, if the tree has none.
    """
    sources = (hydra or tree.hydra).runtime.config_sources
    own = [source for source in sources if source.provider not in ("hydra", "main")]
    own_folders = [Path(source.path) for source in own if source.schema == "file"]
    for folder, ours in itertools.product(own_folders, sorted(CONFIGS.rglob("*.*"))):
        # Hydra would silently ignore one of two choices of a name. It reads no campaigns.
        choice = ours.relative_to(CONFIGS)
        theirs = folder / choice
        is_other = theirs.is_file() and theirs.read_bytes() != ours.read_bytes()
        if is_other and choice.parts[0] != CAMPAIGNS:
            reason = f"its {choice} has the name of a choice of ours: give it another"
            raise ConfigError("--config-dir", str(folder), reason)

    def read(name: str, *default: str | None) -> Any:
        return f"${{oc.env:{name}}}" if SECRET.search(name) else oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", read, replace=True)
    try:
        plain: Any = OmegaConf.to_container(
            without_hydra(tree), resolve=True, throw_on_missing=True
        )
    except Exception as error:
        raise explain(error) from error
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)

    config = RunConfig.from_dict(plain)
    if config.model.match_params is not None:
        config = chosen("plan", "match", "model.match_params").with_matched(config)
    if config.pe.code is None or config.pe.source is not None:
        return config
    return chosen("position", "own", "pe.code").with_source(config, [CONFIGS, *own_folders])


def without_hydra(tree: DictConfig) -> DictConfig:
    """Return a copy of a composed config without Hydra's own node."""
    return OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"])


def titles(overrides: Sequence[Sequence[str]], configs: Sequence[RunConfig]) -> list[str]:
    """Return a title for each job, from its words: its variant, its seed, other swept values."""
    swept = [len(set(values)) > 1 for values in zip(*overrides, strict=True)]
    titles = []
    for words, config in zip(overrides, configs, strict=True):
        own = [word for word in itertools.compress(words, swept) if not IN_NAME.match(word)]
        others = [word.lstrip("+") for word in own]
        titles.append("-".join([config.pe.label, *others, f"s{config.seed}"]))
    return titles


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
        return "${" in OmegaConf.to_yaml(without_hydra(self.tree))


def run_config(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """Compose the only run of a command line, or the first run of a sweep."""
    return compose_jobs(overrides, config_dir).configs[0]


def compose_jobs(
    words: Sequence[str], config_dir: Path | None = None, *, multirun: bool = False
) -> Jobs:
    """Compose every job of a command line, as `train` does; ConfigError tells any mistake.

    Args:
        words: the overrides; a sweep if `multirun` is true or the config says so.
        config_dir: an additional folder of groups and their choices.
    """
    search = []
    if config_dir is not None:
        if not config_dir.is_dir():
            raise ConfigError("--config-dir", str(config_dir), "there is no such folder")
        search = [f"hydra.searchpath=[{json.dumps(f'file://{config_dir.absolute()}')}]"]

    try:
        with initialize_config_dir(str(CONFIGS), job_name="train", version_base=HYDRA_VERSION):
            loader = GlobalHydra.instance().config_loader()
            options = partial(loader.get_group_options, config_name="config", overrides=search)
            parser = OverridesParser.create(SimpleNamespace(get_group_options=options))  # type: ignore[arg-type]

            def composed(words: Sequence[str]) -> DictConfig:
                return compose("config", [*search, *words], return_hydra_config=True)

            parsed = parser.parse_overrides(list(words))
            ours = [each for each in parsed if not each.is_hydra_override()]
            swept = [each for each in ours if each.is_sweep_override()]
            jobs = [[str(each.input_line) for each in parsed if each not in swept]]
            tree = composed(jobs[0])
            trees = [tree]

            if multirun or tree.hydra.mode == RunMode.MULTIRUN:
                params = (tree.hydra.sweeper.params or {}).items()
                parsed = parser.parse_overrides([*(f"{k}={value}" for k, value in params), *words])
                jobs = split([each for each in parsed if not each.is_hydra_override()])
                trees = [composed(job) for job in jobs]
            elif swept:
                composed(words)  # raises Hydra's error about several values
    except Exception as error:
        raise explain(error) from error
    return Jobs(tree, jobs, [to_run_config(each) for each in trees])


def split(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the words of each job of a sweep: all combinations, with the last key fastest.

    A later word for a key replaces an earlier one, as in Hydra's basic sweeper.
    """
    words = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_discrete_sweep():
            words[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            words[key] = [f"{key}={override.get_value_element_as_str()}"]
        if not words[key]:
            raise ConfigError(key, ..., "the sweep is empty: no choice matches")
    return [list(job) for job in itertools.product(*words.values())]


def explain(error: Exception) -> ConfigError:
    """Convert an error of Hydra, OmegaConf or PyYAML into one sentence.

    A value that cannot be parsed, or has an unknown key, is not shown: it may be a secret.
    """
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, OverrideParseException):
        key = error.override.partition("=")[0].lstrip("+~")
        reason = "cannot be read as key=value; special characters need quotes: \"key='a value'\""
        return ConfigError(key or "override", ..., reason)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        options = [str(option) for option in error.options or ()]
        near = get_close_matches(choice, options, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(options)}"
        if group.startswith("hydra/"):
            hint = "is its plugin installed, as SLURM's by `pip install hydra-submitit-launcher`?"
        return ConfigError(group or "config", choice, f"there is no such choice; {hint}")

    text = " ".join(str(error).split())
    for pattern, reason in REASONS.items():
        if match := re.search(pattern, text):
            return ConfigError(match[1], ..., reason)
    if match := re.search(r"Could not override '([^']+)'", text):
        return unknown_key(match[1], KEYS)
    # OmegaConf knows the key of a value that cannot be merged.
    cause = error.__cause__ or error
    reason = "".join(c if c.isprintable() else " " for c in first_line(cause))
    key = getattr(cause, "full_key", None) or "config"
    return ConfigError(key, ..., reason.partition(" full_key: ")[0])
