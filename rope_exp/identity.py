"""Types of config values, validation by pydantic with our error messages, and a run's identity.

A file that we read back is a TypedDict. This module knows no key by name.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, dataclass_transform

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rope_exp.errors import ConfigError, first_line

# A rule between keys: whether it is broken, the key at fault, and what is allowed there, formatted
# with the config.
Rule = tuple[Any, str, str]
# Strict: neither true nor "3" is a number. A whole number is also a float.
SECTION = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
# Pydantic's phrases, and ours for the same.
WORDS = {
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid array": "a list",
    "an object": "a group of keys",
    "Field required": "has too few values",
}


@dataclass_transform(frozen_default=True)
def section(cls: type[Any]) -> type[Any]:
    """Make a class a section of a config: a frozen dataclass, checked by pydantic."""
    return pydantic_dataclass(cls, frozen=True, config=SECTION)


def numeric(default: Any, **facts: Any) -> Any:
    """Declare facts about a field whose value can change a loss, as any field's that is no setting.

    Such a value is part of a run's identity.

    Args:
        facts: about the key:
            needs: the attributes of the run's config without which the key may not depart from
                its default, and what to say of each.
            kinds: the kinds of data that have the key; without this, all have it.
            of_tokens: True if the key determines the tokens of a corpus.
            own_parameters: True if the key gives a variant parameters of its own.
    """
    return dataclasses.field(default=default, metadata=facts)


def setting(default: Any, **facts: Any) -> Any:
    """Declare a field, or a section, that changes no number: logging, saving, places, presets."""
    return dataclasses.field(default=default, metadata={"numeric": False, **facts})


def one_of(default: Any) -> Any:
    """Declare a section whose first key names a class: the default's, or one of a leaf.

    The choice NAME of `attn` is `Config` of rope_exp/attn/NAME.py.
    """
    return dataclasses.field(default=default, metadata={"one_of": True})


def keys_with(fact: str, section: Any, prefix: str = "") -> list[str]:
    """Return the keys of a dataclass that declare a fact, below a prefix."""
    return [prefix + field.name for field in dataclasses.fields(section) if fact in field.metadata]


def refuse(config: Any, rules: Iterable[Rule]) -> None:
    """Refuse a config that breaks a rule.

    Raises:
        ConfigError: naming the key and its value.
    """
    for is_broken, key, allowed in rules:
        if is_broken:
            value = attrgetter(key)(config)
            # The text of a file is not shown.
            shown = ... if "\n" in str(value) else value
            raise ConfigError(key, shown, allowed.format(config))


def settle(section: Any, **values: Any) -> None:
    """Set keys of a frozen dataclass in its __post_init__, so that one meaning has one spelling."""
    for key, value in values.items():
        object.__setattr__(section, key, value)


def rule(allowed: str, holds: Callable[[Any], object]) -> WrapValidator:
    """Return a validator of an annotated type with one error message, `allowed`.

    Values of another type get the same message.
    """

    def check(value: Any, of_type: ValidatorFunctionWrapHandler) -> Any:
        with contextlib.suppress(ValidationError):
            found = of_type(_with_tuples(value))
            if holds(found):
                return found
        raise ValueError(allowed)

    return WrapValidator(check)


def _with_tuples(value: Any) -> Any:
    """Return a value with tuples for its lists, at any depth."""
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


# -- checking ----------------------------------------------------------------------------------


_adapter = functools.cache(TypeAdapter)


def convert(hint: Any, values: Any, key: str = "") -> Any:
    """Return plain values as the type `hint`.

    A TypedDict drops keys that it does not declare; a dataclass refuses them. RunConfig.from_dict
    converts sections that are one of several.

    Args:
        key: of all the values, for an error.
    Raises:
        ConfigError: naming the key at fault, its value and what is allowed.
    """
    try:
        # Through JSON, because strict validation accepts tuples and dataclasses only from there.
        text = json.dumps(values, default=repr)
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        raise _refusal(error, values, key, hint) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(key or "its content", ..., first_line(error)) from error


def _refusal(error: ValidationError, values: Any, key: str, hint: Any) -> ConfigError:
    """Convert pydantic's error into ours, for the first key at fault.

    Args:
        values: the validated values.
        key: of all the values.
        hint: their type; its keys are suggested in place of an unknown one.
    """
    faults: list[Any] = error.errors()
    first = faults[0]
    path, value = _place(first["loc"], values)
    if first["type"] == "missing" and isinstance(first["loc"][-1], str):
        path.append(first["loc"][-1])
        return ConfigError(".".join(filter(None, [key, *path])), ..., "is missing")

    where = ".".join(filter(None, [key, *path]))
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(where, known_keys(hint, f"{key}." if key else ""))
    # A value with several possible types has a fault for each.
    words = [in_words(fault) for fault in faults if _place(fault["loc"], values)[0] == path]
    allowed = ", or ".join(words).replace(", or must be ", ", or ")
    return ConfigError(where or "its content", value if where else ..., allowed)


def _place(location: Iterable[int | str], values: Any) -> tuple[list[str], Any]:
    """Return the keys that lead to a fault, and the value there; for a list, the whole list.

    A location also names the possible types of a value, which are skipped.
    """
    path = []
    for part in location:
        if isinstance(values, Mapping) and part in values:
            path.append(str(part))
            values = values[part]
    return path, values


def in_words(fault: Any) -> str:
    """Return the message of one of pydantic's faults in the words of our own errors."""
    message: str = fault["msg"].removeprefix("Value error, ")
    message = re.sub("^[A-Z][a-z]+ should ", "must ", message)
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return message


# -- sections ----------------------------------------------------------------------------------


def defaults_of(section: Any) -> dict[str, Any]:
    """Return the declared default of every key of a dataclass, as a mapping."""
    defaults = {field.name: field.default for field in dataclasses.fields(section)}
    for name, default in defaults.items():
        if dataclasses.is_dataclass(default):
            defaults[name] = defaults_of(default)
    return defaults


def tag(section: Any) -> str:
    """Return the key that names a choice: its section's first, as attn.kind and optim.name."""
    return dataclasses.fields(section)[0].name


def class_of(field: dataclasses.Field[Any], values: Any) -> Any:
    """Return the type of a key; of a section that is one of several, the one that `values` name.

    Raises:
        ConfigError: there is no such choice.
    """
    default = field.default
    if "one_of" not in field.metadata:
        return field.type
    own = getattr(default, tag(default))
    name = values.get(tag(default), own) if isinstance(values, Mapping) else own
    if name == own:
        return type(default)
    return chosen(field.name, name, f"{field.name}.{tag(default)}", core=own).Config


def classes_of(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the possible dataclasses of a key, by the choice's name; empty: it is no section."""
    default = field.default
    if not dataclasses.is_dataclass(default):
        return {}
    if "one_of" not in field.metadata:
        return {"": type(default)}
    names = [getattr(default, tag(default)), *choices(field.name)]
    return {name: class_of(field, {tag(default): name}) for name in names}


def known_keys(section: Any, prefix: str = "") -> set[str]:
    """Return the full path of every key below a section, of any choice."""
    keys = set()
    for field in dataclasses.fields(section):
        options = classes_of(field).values()
        below = [known_keys(option, f"{prefix}{field.name}.") for option in options]
        keys |= set().union(*below) if below else {prefix + field.name}
    return keys


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown key, with the nearest existing key.

    The value is not shown: it may be a secret.
    """
    near = get_close_matches(key, known, n=1, cutoff=0.75)
    near += sorted(full for full in known if full.endswith(f".{key}"))
    hint = f"did you mean {near[0]}?" if near else "`rope-exp train --cfg job` prints the keys"
    return ConfigError(key, ..., f"there is no such key; {hint}")


# -- identity ----------------------------------------------------------------------------------


def numeric_values(section: Any, *, departing: bool = False) -> dict[str, Any]:
    """Return every value below a section that can change a number, as a plain mapping.

    Args:
        departing: leave out defaults, so that a key added later, with a default that keeps the
            behaviour, changes no identity. A section that is not the default alternative shows
            its tag.
    """
    found = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if not field.metadata.get("numeric", True):
            continue
        if dataclasses.is_dataclass(value):
            below = numeric_values(value, departing=departing)
            if type(value) is not type(field.default):
                below[tag(value)] = getattr(value, tag(value))
            if below:
                found[field.name] = below
        elif not (departing and value == field.default):
            found[field.name] = value
    return found


def labelled(key: str, value: Any) -> str:
    """Return a label's suffix for a key that departs: -base500000, -trainable, -layers_1110."""
    if isinstance(value, tuple):
        value = "_" + "".join(map(str, value))
    elif isinstance(value, int | float):
        value = "" if value is True else f"{value:g}"
    return f"-{key}{value}"


# -- kinds of values ---------------------------------------------------------------------------


def _is_path(text: str) -> bool:
    """Return whether the system accepts the path: else its first use would fail, perhaps late."""
    path = os.fsencode(os.path.expanduser(text))
    longest = max(map(len, path.split(b"/")))
    # A leading ~ that remains names a user that does not exist.
    is_expanded = path[:1] != b"~"
    return 0 < len(path) <= 3840 and longest <= 255 and is_expanded and b"\0" not in path


Count = Annotated[int, Field(ge=1, lt=2**63)]
# A number of features or heads: torch can count products of three of them.
Size = Annotated[int, Field(ge=1, le=2**20)]
Even = Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Seed = Natural
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
Name = Annotated[
    str,
    rule(
        "must be 1 to 64 letters, digits, spaces or . _ + -, beginning with a letter or digit",
        re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}").fullmatch,
    ),
]
# wandb's limit.
Tag = Annotated[str, Field(min_length=1, max_length=64)]
PathText = Annotated[
    str,
    # The system's limit is 4,096 bytes; the rest is for paths below a run's folder.
    rule(
        "must be a path of at most 3,840 bytes, each of its names of at most 255; a leading ~ must "
        "mean a user's home",
        _is_path,
    ),
]
HEX = "must be 64 hexadecimal digits"
Sha256 = Annotated[str, rule(HEX, re.compile("[0-9a-f]{64}").fullmatch)]
# Empty before the first step.
OrderSha256 = Annotated[str, rule(f"{HEX}, or empty", re.compile("([0-9a-f]{64})?").fullmatch)]


# -- leaves ------------------------------------------------------------------------------------


def choices(folder: str) -> list[str]:
    """Return the names that `chosen` takes: the files of rope_exp/FOLDER."""
    here = (Path(__file__).parent / folder).glob("[!_]*.py")
    return sorted(path.stem for path in here)


def chosen(folder: str, name: str, key: str, *, core: str = "") -> ModuleType:
    """Import rope_exp/FOLDER/NAME.py.

    Args:
        core: a name that needs no file, for the message.
    Raises:
        ConfigError: there is no such file; the message lists those there are.
    """
    names = choices(folder)
    if name not in names:
        allowed = ", ".join(filter(None, [core, *names]))
        raise ConfigError(key, name, f"must be one of {allowed}")
    return import_module(f"rope_exp.{folder}.{name}")


def file_of(folder: str, *own: str) -> WrapValidator:
    """Return a validator of a name: a file of rope_exp/FOLDER, or one of the core's `own`."""
    names = [*own, *choices(folder)]
    return rule(f"must be one of {', '.join(names)}", names.__contains__)
