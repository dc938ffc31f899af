"""Composition of a RunConfig by Hydra, and what its `auto` keys mean on this machine.

Errors of Hydra become one sentence that names the key, and the nearest name. A DictConfig is
converted here, once; the rest of the package never sees one.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache, partial
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
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from rope_exp import hub
from rope_exp.config import RunConfig, check_group, flat
from rope_exp.errors import ConfigError, first_line
from rope_exp.folder import CONFIG
from rope_exp.identity import Refusal, refuse, unknown_key
from rope_exp.machine import (
    PACKAGE,
    ROOT,
    check_threads,
    gpus,
    has_bf16,
    has_compiler,
    num_cores,
    total_memory,
)
from rope_exp.sections import LaunchConfig

# Beside the package in a checkout; inside it in an installation.
CONFIGS = next(folder for folder in (PACKAGE / "configs", ROOT / "configs") if folder.is_dir())
HYDRA_VERSION = "1.3"  # version_base, which selects Hydra's behaviour
CAMPAIGNS = "campaign"  # a folder of configs that are not parts of a run's config
ZERO_STEP = r"range\(\) arg 3|Invalid range values"  # in errors of whole and of real numbers
SEVERAL = "several values make a sweep, which needs -m; a list is written [a,b]"
# Errors of a user's overrides and files, which `to_config_error` turns into a sentence. Any other
# error is a bug, and keeps its traceback.
MISTAKES = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError)
# Hydra's sentences that name a key, and ours for the same.
REASONS = {
    r"(?:Ambiguous value for argument|Sweep parameters) '\+*([^=']*)=": SEVERAL,
    r"An item is already at '([^']*)'": "is a key already; leave out the +",
    r"override '([^']+)'\. No match in the defaults": "nothing is chosen there yet; a + chooses",
}
# Plugins of Hydra that its own repository has, by the choices that they add.
PLUGINS = {
    "hydra/launcher": ("joblib", "ray", "rq", "submitit"),
    "hydra/sweeper": ("ax", "nevergrad", "optuna"),
}
# Names of environment variables with secret values, which are never saved.
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)

# Hydra knows every key, because configs/config.yaml merges this first.
DEFAULTS: dict[str, Any] = RunConfig().to_dict()
# `DataConfig` filled it in; null lets each kind of data name itself.
DEFAULTS["data"]["name"] = None
KEYS = [*flat(DEFAULTS), *DEFAULTS]
for field in fields(RunConfig):
    if "choice" in field.metadata:
        # The file of a choice lists its keys, e.g. configs/attn/mla.yaml. The section stays open
        # (no struct flag), so that keys can be overridden even if a file leaves them out.
        DEFAULTS[field.name] = OmegaConf.create({}, flags={"struct": False})
ConfigStore.instance().store("run_defaults", OmegaConf.create(DEFAULTS), provider="rope_exp")


@dataclass(frozen=True)
class Composed:
    """The runs of a command line, in their order.

    Attributes:
        tree: the config without swept overrides, including Hydra's node.
        overrides: those of each run.
        configs: of each run.
    """

    tree: DictConfig
    overrides: list[list[str]]
    configs: list[RunConfig]


def run_config(overrides: Sequence[str], config_dir: Path | None = None) -> RunConfig:
    """Compose the only run of a command line, or the first run of a sweep."""
    return compose_runs(overrides, config_dir).configs[0]


def compose_runs(
    overrides: Sequence[str], config_dir: Path | None = None, *, multirun: bool = False
) -> Composed:
    """Compose every run of a command line, as `train` does.

    Args:
        overrides: as a user types them, such as pe=vo_rope, optim.lr=1e-3 or seed=0,1,2.
        config_dir: a user's folder, whose choices are found beside ours; None: there is none.
        multirun: the command is a sweep, as by -m. The config can say so, too.
    Returns:
        The runs; a single one unless the command is a sweep.
    Raises:
        ConfigError: an override, a choice or a config is mistaken, or a key has several values
            although the command is not a sweep.
    """
    search = _search_path(config_dir)
    try:
        with initialize_config_dir(str(CONFIGS), job_name="train", version_base=HYDRA_VERSION):
            parser = _override_parser(search)
            parsed = parser.parse_overrides(list(overrides))
            fixed, swept = _split_swept(parsed)
            tree = _compose_tree(fixed, search)
            if multirun or tree.hydra.mode == RunMode.MULTIRUN:
                params = (tree.hydra.sweeper.params or {}).items()
                from_file = parser.parse_overrides([f"{key}={value}" for key, value in params])
                from_user = [override for override in parsed if not override.is_hydra_override()]
                overrides_by_run = split([*from_file, *from_user])
                trees = [_compose_tree(run, search) for run in overrides_by_run]
                for run_tree in trees:
                    check_own_sweep(run_tree.hydra)
            elif swept:
                raise ConfigError(swept[0].get_key_element().lstrip("+"), ..., SEVERAL)
            else:
                overrides_by_run = [fixed]
                trees = [tree]
    except MISTAKES as error:
        raise to_config_error(error) from error
    return Composed(tree, overrides_by_run, list(map(to_run_config, trees)))


def _search_path(config_dir: Path | None) -> list[str]:
    """Return the override by which Hydra finds a user's choices; none without a folder."""
    if config_dir is None:
        return []
    if not config_dir.is_dir():
        raise ConfigError("--config-dir", str(config_dir), "there is no such folder")
    return [f"hydra.searchpath=[{json.dumps(f'file://{config_dir.absolute()}')}]"]


def _override_parser(search: Sequence[str]) -> OverridesParser:
    """Return Hydra's parser of overrides, which lists the choices of glob(*) by its loader.

    Hydra's own loader would list them without the user's folder, so that the parser gets one that
    has the search path.
    """
    loader = GlobalHydra.instance().config_loader()
    options = partial(loader.get_group_options, config_name="config", overrides=list(search))
    return OverridesParser.create(SimpleNamespace(get_group_options=options))  # type: ignore[arg-type]


def _split_swept(parsed: Sequence[Override]) -> tuple[list[str], list[Override]]:
    """Return the overrides of one value, as text, and those of a key with several values.

    Hydra's own keys, such as hydra.sweeper.params, are never swept.
    """
    fixed = []
    swept = []
    for override in parsed:
        if override.is_sweep_override() and not override.is_hydra_override():
            swept.append(override)
        else:
            fixed.append(str(override.input_line))
    return fixed, swept


def _compose_tree(overrides: Sequence[str], search: Sequence[str]) -> DictConfig:
    """Return the config of one run, with Hydra's own node."""
    return compose("config", [*search, *overrides], return_hydra_config=True)


def split(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of each run of a sweep: all combinations, with the last key fastest.

    A later override of a key replaces an earlier one, as in Hydra's basic sweeper.
    """
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise range_error(key)
        if override.is_discrete_sweep():
            try:
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            except (ValueError, HydraException) as error:
                if re.search(ZERO_STEP, str(error)):
                    raise zero_step_error(key) from None
                raise
        else:
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        if not choices[key]:
            raise ConfigError(key, ..., "the sweep is empty: no choice matches")
    return list(map(list, itertools.product(*choices.values())))


def range_error(key: str) -> ConfigError:
    """Return the error for a range of values, such as interval(0, 1), that nothing draws from."""
    reason = "is a range, from which a sweeper of another package draws: `rope-exp train -m "
    return ConfigError(key, ..., f"{reason}hydra/sweeper=optuna ...`, by hydra-optuna-sweeper")


def zero_step_error(key: str) -> ConfigError:
    """Return the error for a range such as range(0, 3, 0), which never ends."""
    return ConfigError(key, ..., "is a range whose step is 0, which never ends")


def titles(overrides: Sequence[Sequence[str]], configs: Sequence[RunConfig]) -> list[str]:
    """Return a title for each run: its variant, the other values that are swept, and its seed."""
    is_swept = [len(set(values)) > 1 for values in zip(*overrides, strict=True)]
    titles = []
    for run_overrides, config in zip(overrides, configs, strict=True):
        others = []
        for override in itertools.compress(run_overrides, is_swept):
            override = override.lstrip("+")
            if not override.startswith(("pe=", "pe.", "seed=")):
                others.append(override)
        titles.append("-".join([config.pe.label, *others, f"s{config.seed}"]))
    return titles


def to_run_config(tree: DictConfig, hydra: Any = None) -> RunConfig:
    """Return a composed config as a RunConfig, with the text of `pe.code`'s file.

    `${oc.env:NAME}` becomes its value. If the name looks secret it stays unresolved, because
    configs are saved with every run. `hydra` is Hydra's own node, if the tree has none.
    """
    sources = (hydra or tree.hydra).runtime.config_sources
    user_folders = []
    for source in sources:
        if source.provider not in ("hydra", "main") and source.schema == "file":
            user_folders.append(Path(source.path))
    for folder in user_folders:
        _check_choices(folder)

    def read(name: str, *default: str | None) -> Any:
        return f"${{oc.env:{name}}}" if SECRET.search(name) else oc.env(name, *default)

    OmegaConf.register_new_resolver("oc.env", read, replace=True)
    try:
        plain: Any = OmegaConf.to_container(
            without_hydra(tree), resolve=True, throw_on_missing=True
        )
    except MISTAKES as error:
        raise to_config_error(error) from error
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)

    config = RunConfig.from_dict(plain)
    # Not a rule of every config: runs that were begun by older versions may have such a group.
    if config.run.group is not None and not (config.folder / CONFIG).exists():
        check_group("run.group", config.run.group)
    if config.model.match_params is not None:
        # Imported where it is needed, here and below: torch takes seconds.
        from rope_exp.costs import with_matched

        config = with_matched(config)
    if config.pe.code is None or config.pe.source is not None:
        return config
    from rope_exp.custom_code import with_source

    return with_source(config, [CONFIGS, *user_folders])


@cache
def _check_choices(folder: Path) -> None:
    """Refuse a user's folder with a choice of a name of ours: Hydra would ignore one of the two."""
    for path in sorted(CONFIGS.rglob("*.*")):
        choice = path.relative_to(CONFIGS)
        user_path = folder / choice
        is_other = user_path.is_file() and user_path.read_bytes() != path.read_bytes()
        # Hydra reads no campaigns.
        if is_other and choice.parts[0] != CAMPAIGNS:
            reason = f"its {choice} has the name of a choice of ours: give it another"
            raise ConfigError("--config-dir", str(folder), reason)


def check_own_sweep(hydra: Any) -> None:
    """Refuse a swept experiment that defines a sweep of its own.

    Hydra reads hydra.sweeper.params once, before the swept values apply, and would drop it.

    Args:
        hydra: the run's node, after its overrides were applied.
    """
    overridden = {override.lstrip("+~").partition("=")[0] for override in hydra.overrides.task}
    ignored = []
    for key in hydra.sweeper.get("params") or {}:
        if key.lstrip("+~") not in overridden:
            ignored.append(key)
    if ignored:
        reason = f"a sweep over experiments would lose their own sweep, of {', '.join(ignored)}"
        raise ConfigError("experiment", ..., f"{reason}; start each in a command of its own")


def without_hydra(tree: DictConfig) -> DictConfig:
    """Return a copy of a composed config without Hydra's own node."""
    return OmegaConf.masked_copy(tree, [str(key) for key in tree if key != "hydra"])


def to_config_error(error: Exception) -> ConfigError:
    """Return an error of Hydra, OmegaConf or PyYAML as one sentence.

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
        hint = f"choose one of {', '.join(options)}, or name the folder of your own by --config-dir"
        if near:
            hint = f"did you mean {near[0]}?"
        # Hydra names the files of a plugin after it: submitit_slurm is of hydra-submitit-launcher.
        plugin = choice.partition("_")[0]
        if plugin in PLUGINS.get(group, ()):
            package = f"hydra-{plugin}-{group.removeprefix('hydra/')}"
            hint = f"its plugin is not installed: `pip install {package}`"
        return ConfigError(group or "config", choice, f"there is no such choice; {hint}")

    text = " ".join(str(error).split())
    for pattern, reason in REASONS.items():
        match = re.search(pattern, text)
        if match:
            return ConfigError(match[1], ..., reason)
    match = re.search(r"Could not override '([^']+)'", text)
    if match:
        return unknown_key(match[1], KEYS)
    # OmegaConf knows the key of a value that cannot be merged.
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None) or "config"
    return ConfigError(key, ..., first_line(cause).partition(" full_key: ")[0])


# -- on this machine -------------------------------------------------------------------------------


def finalise(
    config: RunConfig,
    world_size: int | None = None,
    *,
    for_plan: bool = False,
    resolves: bool = True,
) -> RunConfig:
    """Return the config that a run trains with and config.yaml stores: nothing is left open.

    `to_run_config` has filled in the keys that depend on the command line alone: the MLP's width
    for model.match_params, and the text of pe.code. This function fills in, in this order, the
    commits of data and tokenizer on the hub, the hash of the weights of run.init_from, and the
    `auto` keys.

    Args:
        config: as `to_run_config` returns it.
        world_size: of the launcher that started this process; None: we start the processes.
        for_plan: skip the network, the memory check and the laws.
        resolves: False leaves `auto` keys to the node that runs it.
    Raises:
        ConfigError: a commit, a run or a device is not there, memory is too small, or a class of
            pe.code is mistaken: it is measured here, before anything is written.
    """
    if not for_plan:
        data, tokenizer = hub.pin(config.data, config.tokenizer)
        config = replace(config, data=data, tokenizer=tokenizer)
    if config.run.init_from is not None:
        from rope_exp.init_from import with_weights

        config = with_weights(config)
    if not resolves:
        return config
    config = resolve(config, world_size, for_plan=for_plan)
    if not for_plan:
        check_memory([config], world_size)
    if config.pe.code is not None and not for_plan:
        from rope_exp.laws import measured_once

        measured_once(config.model, config.pe, config.attn, causal=config.causal)
    return config


def resolve(
    config: RunConfig, world_size: int | None = None, *, for_plan: bool = False
) -> RunConfig:
    """Return `config` with `auto` replaced by this machine's values; refuse what it lacks.

    launch.num_threads stays auto: the dispatcher sets OMP_NUM_THREADS, which torch reads.

    Args:
        config: of one run.
        world_size: of the launcher that started this process, perhaps over several hosts; None: we
            start the processes.
        for_plan: nothing starts, so a machine without GPUs will do.
    Returns:
        The config.
    Raises:
        ConfigError: this machine lacks something, or a batch does not divide.
    """
    launch = config.launch
    if launch.num_threads == "auto":
        check_threads()
    device = launch.device
    if device == "auto":
        device = "cuda" if gpus() else "cpu"
    processes = world_size or launch.num_processes
    if processes == "all":
        processes = max(len(gpus()), 1)
    launch = replace(launch, device=device, num_processes=processes)
    launch = replace(launch, max_parallel=runs_at_a_time(launch))
    config = replace(config, launch=launch)
    refuse(config, _machine_refusals(config, world_size is None, for_plan))

    train = config.train
    resolved: dict[str, Any] = {}
    if train.precision == "auto":
        resolved["precision"] = "bf16" if has_bf16(device) else "fp32"
    if train.compile == "auto":
        # On a GPU it pays by estimate from 1e14 operations at nano and 4e15 at 125m, and a run
        # worth a GPU takes more.
        from rope_exp.costs import pays_to_compile

        resolved["compile"] = (device == "cuda" or pays_to_compile(config)) and has_compiler(device)
    if train.deterministic == "auto":
        resolved["deterministic"] = device == "cpu"
    return config.replace("train", **resolved)


def check_memory(configs: Sequence[RunConfig], world_size: int | None = None) -> None:
    """Refuse runs on a CPU that together need more memory, by estimate, than this machine has.

    The kernel would end them, or swap for days. A GPU's own error comes at once.

    Args:
        configs: resolved; at most launch.max_parallel of these runs are trained at a time.
        world_size: of the launcher that started this process, perhaps over several machines; None:
            we start the processes, on this one.
    Raises:
        ConfigError: the largest runs that may be trained at a time do not fit.
    """
    to_check = []
    for config in configs:
        if config.launch.device == "cpu" and not config.launch.exceed_memory:
            to_check.append(config)
    if not to_check:
        return
    from rope_exp.costs import GIB, known_vocab_size, memory_bytes

    needs = []
    for config in to_check:
        num_processes = int(config.launch.num_processes)
        if world_size is not None:
            # torchrun and `accelerate launch` say how many of its processes are on this machine.
            num_processes = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), world_size)
        # The vocabulary of a pretrained tokenizer is not known yet.
        needs.append(num_processes * memory_bytes(config, known_vocab_size(config) or 1))

    at_a_time = min(max(int(config.launch.max_parallel) for config in to_check), len(to_check))
    needed = sum(sorted(needs)[-at_a_time:])
    total = total_memory()
    if needed > total:
        subject = "this run needs"
        pronoun = "it"
        if at_a_time > 1:
            subject = f"{at_a_time} runs at a time (launch.max_parallel) need"
            pronoun = "them"
        reason = f"{subject} about {needed / GIB:.1f} GiB of memory by estimate, and there are "
        reason += f"{total / GIB:.1f}; true starts {pronoun} anyway"
        if at_a_time > 1:
            reason += ", and launch.max_parallel=1 one at a time"
        raise ConfigError("launch.exceed_memory", False, reason)


def runs_at_a_time(launch: LaunchConfig) -> int:
    """Return `launch.max_parallel`; auto is as many runs as the GPUs or the cores allow.

    On a CPU, a run whose number of threads is auto has all cores for itself.
    """
    if launch.max_parallel != "auto":
        return launch.max_parallel
    if launch.device == "cuda":
        places = len(gpus()) * launch.runs_per_gpu
    elif launch.num_threads != "auto":
        places = num_cores() // launch.num_threads
    else:
        return 1
    return max(places // int(launch.num_processes), 1)


def _machine_refusals(
    config: RunConfig, starts_processes: bool, for_plan: bool
) -> Iterator[Refusal]:
    """Yield what this machine lacks, and batches that do not divide into equal parts."""
    train = config.train
    launch = config.launch
    num_gpus = len(gpus())
    on_gpus = launch.device == "cuda" and not for_plan
    count = int(launch.num_processes)
    if on_gpus and not num_gpus:
        reason = "this machine shows no GPU; set launch.device=auto (a campaign for GPUs needs one)"
        yield Refusal("launch.device", reason)
    if on_gpus and starts_processes and count > num_gpus:
        yield Refusal("launch.num_processes", f"this machine shows {num_gpus} GPUs")

    reason = f"must be a multiple of the {count} processes"
    share, rest = divmod(train.global_batch_size, count)
    if rest:
        yield Refusal("train.global_batch_size", reason)
    if share % min(train.micro_batch_size or share, share):
        must_divide = f"must divide a process's share of {share} sequences"
        yield Refusal("train.micro_batch_size", must_divide)
    for stage in train.staged:
        if stage.batch_size % count:
            step = f"a step has {stage.batch_size} sequences of {stage.seq_len}, which"
            yield Refusal("train.stages", f"{step} {reason}")
