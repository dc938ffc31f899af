"""Typed sections of a config, their identity, and one sentence for a mistake. Knows no key by name.

A file that we read back is a TypedDict.
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

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rope_exp.errors import ConfigError, first_line

# A rule between keys: whether it is broken, the key at fault, and the reason, which is formatted
# with the config.
Rule = tuple[Any, str, str]
# Pydantic's phrases, and ours for the same.
WORDS = {
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid array": "a list",
    "an object": "a group of keys",
    "a dictionary": "a group of keys",
    "Field required": "has too few values",
}


# -- keys and the facts about them ---------------------------------------------------------------


@dataclass_transform(frozen_default=True)
def section(cls: type[Any]) -> type[Any]:
    """Make a class a section of a config: a frozen dataclass, checked by pydantic.

    Strict: neither true nor "3" is a number. A whole number is also a float.
    """
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return pydantic_dataclass(cls, frozen=True, config=strict)


def numeric(default: Any, **facts: Any) -> Any:
    """Declare a key whose value can change a loss, as any key's can that is no setting.

    Such a value is part of a run's identity.

    Args:
        facts: about the key:
            needs: attributes of the run's config without which it may not depart.
            kinds: the kinds of data that have the key; without this, all have it.
            of_tokens: True if it determines the tokens of a corpus.
            own_parameters: present if it gives a variant parameters of its own: the further keys
                that determine their number, if it departs.
            assumption: of the list under a table, "departing": only a departure is in it;
                "elsewhere": another sentence or the rows report it.
    """
    return dataclasses.field(default=default, metadata=facts)


def setting(default: Any, **facts: Any) -> Any:
    """Declare a key, or a section, that changes no number: logging, saving, places, presets."""
    return dataclasses.field(default=default, metadata={"numeric": False, **facts})


def one_of(default: Any) -> Any:
    """Declare a section whose first key names a class: the default's, or one of a leaf.

    The choice NAME of `attn` is `Config` of rope_exp/attn/NAME.py.
    """
    key = dataclasses.fields(default)[0].name
    return dataclasses.field(default=default, metadata={"one_of": key})


def facts_of(section: Any, fact: str, prefix: str = "") -> dict[str, Any]:
    """Return a fact about each key of a dataclass that declares it, by the key below a prefix."""
    fields = dataclasses.fields(section)
    return {prefix + each.name: each.metadata[fact] for each in fields if fact in each.metadata}


def refuse(config: Any, rules: Iterable[Rule]) -> None:
    """Raise ConfigError for the first rule that a config breaks, with the key and its value."""
    for is_broken, key, reason in rules:
        if is_broken:
            value = attrgetter(key)(config)
            # The text of a file is not shown.
            raise ConfigError(key, ... if "\n" in str(value) else value, reason.format(config))


def settle(section: Any, **values: Any) -> None:
    """Set keys of a frozen dataclass in its __post_init__, so that one meaning has one spelling."""
    for key, value in values.items():
        object.__setattr__(section, key, value)


# -- conversion ----------------------------------------------------------------------------------


_adapter = functools.cache(TypeAdapter)


def convert(hint: Any, values: Any, key: str = "") -> Any:
    """Return plain values as the type `hint`.

    A TypedDict drops keys that it does not declare; a dataclass refuses them.

    Args:
        key: of all the values, for an error.
    Raises:
        ConfigError: naming the key at fault, its value and the reason.
    """
    try:
        # Through JSON, because strict validation accepts tuples and dataclasses only from there.
        text = json.dumps(values, default=repr)
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        faults: list[Any] = error.errors()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(key or "its content", ..., first_line(error)) from error

    first = faults[0]
    path, value = _place(first["loc"], values)
    where = ".".join(filter(None, [key, *path]))
    if first["type"] == "missing" and isinstance(first["loc"][-1], str):
        raise ConfigError(".".join(filter(None, [where, first["loc"][-1]])), ..., "is missing")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        is_section = dataclasses.is_dataclass(hint)
        raise unknown_key(where, known_keys(hint, f"{key}.") if is_section else ())
    # A value with several possible types has a fault for each.
    words = [_words(each["msg"]) for each in faults if _place(each["loc"], values)[0] == path]
    reason = ", or ".join(words).replace(", or must be ", ", or ")
    raise ConfigError(where or "its content", value if where else ..., reason)


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


def _words(message: str) -> str:
    """Return pydantic's message in the words of our own errors."""
    message = re.sub("^[A-Z][a-z]+ should ", "must ", message.removeprefix("Value error, "))
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return message


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown key, with the nearest existing key.

    The value is not shown: it may be a secret.
    """
    near = get_close_matches(key, known, n=1, cutoff=0.75)
    near += sorted(full for full in known if full.endswith(f".{key}"))
    hint = f"did you mean {near[0]}?" if near else "`rope-exp train --cfg job` prints the keys"
    return ConfigError(key, ..., f"there is no such key; {hint}")


# -- leaves --------------------------------------------------------------------------------------


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


def class_of(field: dataclasses.Field[Any], values: Any) -> Any:
    """Return the type of a key; of a section that is one of several, the one that `values` name."""
    if (key := field.metadata.get("one_of")) is None:
        return field.type
    core = getattr(field.default, key)
    name = values.get(key, core) if isinstance(values, Mapping) else core
    if name == core:
        return type(field.default)
    return chosen(field.name, name, f"{field.name}.{key}", core=core).Config


def names_of(field: dataclasses.Field[Any]) -> list[str]:
    """Return the names of the choices for a section that is one of several; the core's first."""
    return [getattr(field.default, field.metadata["one_of"]), *choices(field.name)]


def classes_of(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the possible dataclasses of a key, by the choice's name; empty: it is no section."""
    if (key := field.metadata.get("one_of")) is None:
        default = field.default
        return {"": type(default)} if dataclasses.is_dataclass(default) else {}
    return {name: class_of(field, {key: name}) for name in names_of(field)}


def known_keys(section: Any, prefix: str = "") -> set[str]:
    """Return the full path of every key below a section; of one of several, the core's keys.

    Those of a leaf would need its module, and so torch, before a mistake is told.
    """
    keys = set()
    for field in dataclasses.fields(section):
        full = prefix + field.name
        is_section = dataclasses.is_dataclass(field.default)
        keys |= known_keys(field.default, f"{full}.") if is_section else {full}
    return keys


def defaults_of(section: Any) -> dict[str, Any]:
    """Return the declared default of every key of a dataclass, as a mapping."""
    defaults = {}
    for field in dataclasses.fields(section):
        value = field.default
        defaults[field.name] = defaults_of(value) if dataclasses.is_dataclass(value) else value
    return defaults


# -- identity ------------------------------------------------------------------------------------


def numeric_values(section: Any, *, departing: bool = False) -> dict[str, Any]:
    """Return every value below a section that can change a number, as a plain mapping.

    Args:
        departing: leave out defaults, so that a key added later, with a default that keeps the
            behaviour, changes no identity. A choice that is not the default shows its name.
    """
    found = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if not field.metadata.get("numeric", True):
            continue
        if dataclasses.is_dataclass(value):
            below = numeric_values(value, departing=departing)
            if type(value) is not type(field.default):
                below[field.metadata["one_of"]] = getattr(value, field.metadata["one_of"])
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


# -- types of values -----------------------------------------------------------------------------


def rule(allowed: str, holds: Callable[[Any], object]) -> WrapValidator:
    """Return a validator of an annotated type with one message, whatever is wrong."""

    def check(value: Any, of_type: Callable[[Any], Any]) -> Any:
        with contextlib.suppress(ValidationError):
            found = of_type(_with_tuples(value))
            if holds(found):
                return found
        raise ValueError(allowed)

    return WrapValidator(check)


def _with_tuples(value: Any) -> Any:
    """Return a value with tuples for its lists, at any depth."""
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def matching(pattern: str, allowed: str) -> WrapValidator:
    """Return a validator of text that matches a pattern as a whole."""
    return rule(allowed, re.compile(pattern, re.ASCII).fullmatch)


def _is_path(text: str) -> bool:
    """Return whether the system accepts the path: else its first use would fail, perhaps late."""
    path = os.fsencode(os.path.expanduser(text))
    longest = max(map(len, path.split(b"/")))
    # A leading ~ that remains names a user that does not exist. The rest of the system's 4,096
    # bytes is for paths below a run's folder.
    return 0 < len(path) <= 3840 and longest <= 255 and path[:1] != b"~" and b"\0" not in path


Count = Annotated[int, Field(ge=1, lt=2**63)]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
# A number of features or heads: torch can count products of three of them.
Size = Annotated[int, Field(ge=1, le=2**20)]
Even = Annotated[int, Field(ge=2, le=2**20, multiple_of=2)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]
NAME = "must be 1 to 64 letters, digits, spaces or . _ + -, beginning with a letter or digit"
Name = Annotated[str, matching(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}", NAME)]
PATH = "must be a path of at most 3,840 bytes, each of its names of at most 255; a leading ~ must "
PathText = Annotated[str, rule(f"{PATH}mean a user's home", _is_path)]
HEX = "must be 64 hexadecimal digits"
Sha256 = Annotated[str, matching("[0-9a-f]{64}", HEX)]
# Empty before the first step.
OrderSha256 = Annotated[str, matching("([0-9a-f]{64})?", f"{HEX}, or empty")]
