"""What a command line may ask of the config: each word is checked before Hydra composes.

Hydra overrides only a key that some YAML file mentions, and ours mention only what they change.
So `train.seq_len=64` is handed on as Hydra's `++train.seq_len=64`, once it is known to be a key.
"""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import known_keys, unknown_key
from rope_exp.system.errors import ConfigError

# Of one sweep: every run is composed and checked before the first one starts.
MAX_RUNS = 10_000
# What a cluster asks for and the launcher does not list: no file mentions such a key.
OF_SLURM = "hydra.launcher.additional_parameters."
# Of one override: where they nest, Python's stack is the limit.
MAX_BRACKETS = 50
# A folder of configs that holds none of a run.
CAMPAIGNS = "campaign"


def check_overrides(words: Sequence[str], loader: ConfigLoaderImpl) -> list[Override]:
    """Return the overrides as Hydra must be given them.

    Args:
        words: `key=value`, `group=choice`, and what else Hydra's grammar knows.
        loader: knows the choices of groups.
    Raises:
        ConfigError: naming the key of a word that cannot be read, of an unknown key or choice, of
            one of Hydra's own settings, or of a sweep of no run or of too many. A value that
            cannot be read is not shown, for it may be a secret.
    """
    overrides = []
    num_values = {}

    for word in words:
        override = _parse(word, loader)
        _check_hydras(override)
        key = override.key_or_group
        if key == CAMPAIGNS:
            raise ConfigError(key, ..., "is no key of a run; `rope-exp campaign NAME` runs one")
        if override.is_delete():
            raise ConfigError(
                key, ..., "nothing is taken out with ~; a key that is left out has its default"
            )

        # As Hydra does it, a later word about the same key replaces the earlier one.
        choices = loader.repository.get_group_options(key)
        num_values[override.get_key_element()] = _num_values(override, choices)
        if math.prod(num_values.values()) > MAX_RUNS:
            raise ConfigError(key, ..., f"makes a sweep of more than {MAX_RUNS:,} runs")

        is_ours = not (override.is_hydra_override() or choices)
        if is_ours:
            _check_known(override)
        if is_ours or key.startswith(OF_SLURM):
            override.type = OverrideType.FORCE_ADD
            override.input_line = f"++{word.lstrip('+')}"
        overrides.append(override)

    return overrides


def _parse(word: str, loader: ConfigLoaderImpl) -> Override:
    """Read one word with Hydra's grammar."""
    written, equals, _ = word.partition("=")
    key = written.lstrip("+~")
    if not key or not (equals or written.startswith("~")):
        raise ConfigError("override", word, "is not of the form key=value")
    if word.count("[") + word.count("{") > MAX_BRACKETS:
        raise ConfigError(key, ..., "its value is nested too deeply")

    try:
        return OverridesParser.create(loader).parse_overrides([word])[0]
    except (HydraException, ValueError) as error:
        # A ValueError is a number of more digits than Python reads.
        raise ConfigError(
            key,
            ...,
            "its value cannot be read; special characters need quotes of their own, "
            "as in \"key='a value'\"",
        ) from error


def _check_hydras(override: Override) -> None:
    """Refuse all of Hydra's own settings but those that a command line may set."""
    key = override.get_key_element().lstrip("+~")

    # Hydra would import what `hydra.searchpath` and a `_target_` name: the one while it composes.
    is_open = key in ("hydra/launcher", "hydra.verbose") or key.startswith("hydra.launcher.")
    is_fixed = not is_open or "_target_" in key or override.is_sweep_override()
    if "hydra" in key and is_fixed:
        raise ConfigError(
            key,
            ...,
            "Hydra's own settings are fixed, but for one value each of "
            "hydra/launcher, hydra.launcher.*, hydra.verbose",
        )


def _num_values(override: Override, choices: list[str]) -> int:
    """Return how many values are swept over. Those of a group must be choices that are there."""
    key = override.key_or_group
    value: Any = override.value()
    values = [value]
    if override.is_range_sweep():
        values = list(islice(value.range(), MAX_RUNS + 1))
    elif override.is_choice_sweep():
        values = list(override.sweep_iterator())
    elif override.is_interval_sweep():
        # It has no last value.
        return MAX_RUNS + 1

    if not values:
        among = f" among {', '.join(choices)}" if choices else ""
        raise ConfigError(key, ..., f"the sweep is empty: nothing matches{among}")

    if choices:
        for choice in values:
            # A quoted one carries its quotes beside its text.
            if getattr(choice, "text", choice) not in choices:
                raise ConfigError(
                    key, choice, f"there is no such choice; choose one of {', '.join(choices)}"
                )
    return len(values)


def _check_known(override: Override) -> None:
    """Refuse what is no group, and no key of a run's config."""
    key = override.key_or_group
    keys = known_keys(RunConfig)
    is_known = any(f"{known}.".startswith(f"{key}.") for known in keys)
    if override.package is not None or not is_known:
        raise unknown_key(key, keys)
    if override.type == OverrideType.ADD:
        raise ConfigError(key, ..., "is a key already; leave out the +")
