"""Translation of Hydra's errors into one sentence that names the key, and the nearest name."""

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from glob import escape
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)

from rope_exp.config.run import RunConfig
from rope_exp.config.schema import known_keys, unknown_key
from rope_exp.system.errors import ConfigError, first_line

# A folder of configs that are not parts of a run's config.
CAMPAIGNS = "campaign"
# Hydra's sentences that name a key, and ours for the same.
UNKNOWN = re.compile(r"Could not override '([^']*)'")
SENTENCES = {
    r"(?:Ambiguous value for argument|Sweep parameters) '\+*([^=']*)=": (
        "several values make a sweep, which needs -m; a list is written [a,b]"
    ),
    r"Could not append to config\. An item is already at '([^']*)'": (
        "is a key already; leave out the +"
    ),
}


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

    said = " ".join(str(error).split())
    for pattern, allowed in SENTENCES.items():
        if match := re.search(pattern, said):
            return ConfigError(match[1], ..., allowed)
    if match := UNKNOWN.search(said):
        return _unknown(match[1], said)

    if type(error) in (ValueError, RecursionError) and (found := _culprit(words)):
        return found

    # OmegaConf knows the key of a value that cannot be merged.
    cause = error.__cause__ or error
    text = "".join(c if c.isprintable() else " " for c in first_line(cause))
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return ConfigError(mark.name, ..., f"is no YAML: {error.problem}, line {mark.line + 1}")
    text = text.partition(" full_key: ")[0]
    return ConfigError(getattr(cause, "full_key", None) or "config", ..., text)


def _unreadable(word: str) -> ConfigError:
    """Return the error for a word that Hydra's grammar rejects."""
    key, equals, _ = word.partition("=")
    key = key.lstrip("+~")
    if not (key and equals):
        return ConfigError("override", word, "is not of the form key=value")
    allowed = (
        "its value cannot be read; special characters need quotes of their own, "
        "as in \"key='a value'\""
    )
    return ConfigError(key, ..., allowed)


def _culprit(words: Sequence[str]) -> ConfigError | None:
    """Return the error for the first word that Hydra cannot parse, or that chooses no file."""
    for word in words:
        if "=" not in word or word.startswith("-"):
            continue
        try:
            override = OverridesParser.create().parse_overrides([word])[0]
        except (HydraException, ValueError, RecursionError):
            return _unreadable(word)
        group = override.key_or_group
        value = override.value()
        if is_dataclass(getattr(RunConfig, group, None)) and not isinstance(value, (str, list)):
            return ConfigError(group, value, "must be the name of a choice")
    return None


def _missing(error: MissingConfigException) -> ConfigError:
    """Return the error for a choice that is missing from its group."""
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    options = [str(option) for option in error.options or ()]

    allowed = "there is no such choice"
    # A choice of one's own lies in a folder that the command has not named.
    own = sorted(Path().glob(f"*/{escape(f'{group}/{choice}.yaml')}"))
    if own:
        allowed += f" without --config-dir {own[0].parts[0]}, which holds {own[0]}"
    elif near := get_close_matches(choice, options, n=1):
        allowed += f"; did you mean {near[0]}?"
    elif options:
        allowed += f"; choose one of {', '.join(options)}"
    if group.startswith("hydra/"):
        allowed = (
            "this plugin of Hydra is not installed (SLURM's: `pip install hydra-submitit-launcher`)"
        )
    return ConfigError(group or "config", choice, allowed)


def _unknown(key: str, text: str) -> ConfigError:
    """Return the error for an unknown key, or for a group without a choice."""
    if not key:
        return _unreadable("=")
    if key == CAMPAIGNS:
        return ConfigError(key, ..., "is no key of a run; `rope-exp campaign NAME` runs one")
    if "No match in the defaults list" in text:
        return ConfigError(key, ..., f"nothing is chosen there yet; did you mean +{key}=...?")
    known = known_keys(RunConfig)
    return unknown_key(key, known | {each.partition(".")[0] for each in known})
