"""Typed sections of a config, one sentence for a mistake, and choices by name. Knows no key."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, dataclass_transform

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rope_exp.errors import ConfigError, first_line


class Refusal(NamedTuple):
    """A rule between keys that a config breaks: the key at fault, and the reason."""

    key: str
    reason: str


@dataclass_transform(frozen_default=True)
def section(cls: type[Any]) -> type[Any]:
    """Make a class a section of a config: a frozen dataclass, checked by pydantic.

    Strict: neither true nor "3" is a number. A whole number is also a float.
    """
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return pydantic_dataclass(cls, frozen=True, config=strict)


def affects_result(default: Any, **facts: Any) -> Any:
    """Declare a key of any type that can change a number, as any with a bare default can.

    Args:
        facts: about the key:
            needs: dotted attributes of the run's config, or NAME=VALUE, without which it is void.
            kinds: the kinds of data that have the key; by default all.
            of_tokens: True if it determines the tokens of a corpus.
            variant_parameters: the other keys that determine how many parameters this one adds.
            assumption: "departing": the assumptions under a table list it only if it departs;
                "elsewhere": they never do.
    """
    return dataclasses.field(default=default, metadata=facts)


def no_effect_on_result(default: Any, **facts: Any) -> Any:
    """Declare a key, or a section, that changes no number: logging, saving, places, presets."""
    return dataclasses.field(default=default, metadata={"affects_result": False, **facts})


def choice_of(default: Any) -> Any:
    """Declare a section whose first key names a class: the default's, or a leaf's `Config`."""
    key = dataclasses.fields(default)[0].name
    return dataclasses.field(default=default, metadata={"choice": key})


def metadata_of(section: Any, fact: str, prefix: str = "") -> dict[str, Any]:
    """Return a fact about each key of a dataclass that declares it, by the key below a prefix."""
    fields = dataclasses.fields(section)
    return {prefix + key.name: key.metadata[fact] for key in fields if fact in key.metadata}


def refuse(config: Any, refusals: Iterable[Refusal]) -> None:
    """Raise ConfigError for the first refusal, with the key and its value."""
    for key, reason in refusals:
        value = attrgetter(key)(config)
        # The text of a file is not shown.
        raise ConfigError(key, ... if "\n" in str(value) else value, reason)


def set_keys(section: Any, **values: Any) -> None:
    """Set keys of a frozen dataclass in its __post_init__, so that one meaning has one spelling."""
    for key, value in values.items():
        object.__setattr__(section, key, value)


_adapter = functools.cache(TypeAdapter)


def convert(hint: Any, values: Any, key: str = "") -> Any:
    """Return plain values as the type `hint`; ConfigError names the key at fault below `key`.

    A TypedDict drops keys that it does not declare; a dataclass refuses them.
    """
    try:
        # Through JSON, because strict validation accepts tuples and dataclasses only from there.
        text = json.dumps(values, default=repr)
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        faults = error.errors()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(key or "its content", ..., first_line(error)) from error

    def place(location: tuple[int | str, ...]) -> tuple[str, Any]:
        path, value = key, values
        # A location also names the possible types of a value, and places in a list: skipped.
        for part in location:
            if isinstance(value, Mapping) and part in value:
                path, value = f"{path}.{part}".strip("."), value[part]
        return path, value

    first = faults[0]
    where, value = place(first["loc"])
    if first["type"] == "missing":
        raise ConfigError(f"{where}.{first['loc'][-1]}".strip("."), ..., "is missing")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        keys = dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ()
        raise unknown_key(where, [f"{key}.{field.name}" for field in keys])
    # A value with several possible types has a fault for each.
    messages = dict.fromkeys(fault["msg"] for fault in faults if place(fault["loc"])[0] == where)
    reason = ", or ".join(messages).replace("Value error, ", "")
    reason = re.sub(r"\b[A-Z][a-z]+ should ", "must ", reason)
    if first["type"] == "string_type" and isinstance(value, bool | int | float):
        # YAML and Hydra read 1e5, 007 and off as numbers and truth values.
        reason += f"""; in quotes it is one: "{where}='...'", and '...' in a file"""
    raise ConfigError(where or "its content", value if where else ..., reason)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown key, whose value may be a secret, with the nearest one."""
    near = get_close_matches(key, known, n=1, cutoff=0.75)
    near += sorted(full for full in known if full.endswith(f".{key}"))
    hint = f"did you mean {near[0]}?" if near else "`rope-exp train --cfg job` prints the keys"
    return ConfigError(key, ..., f"there is no such key; {hint}")


@functools.cache
def choice_names(folder: str) -> list[str]:
    """Return the names that `import_choice` takes: the files of rope_exp/FOLDER."""
    return sorted(path.stem for path in (Path(__file__).parent / folder).glob("[!_]*.py"))


def import_choice(
    folder: str, name: str, key: str, *, core: str = "", members: Iterable[str] = ()
) -> ModuleType:
    """Import rope_exp/FOLDER/NAME.py.

    Args:
        folder: a folder of choices.
        name: of a file in it.
        key: what names the choice, for errors.
        core: choices that need no file, for errors; empty: there are none.
        members: names that the file must define.
    Raises:
        ConfigError: there is no such file, or it lacks a member.
    """
    names = choice_names(folder)
    if not names and not core:
        raise ConfigError(key, ..., f"needs the folder rope_exp/{folder}, which is not here")
    if name not in names:
        allowed = ", ".join(filter(None, [core, *names]))
        raise ConfigError(key, name, f"must be one of {allowed}")
    module = import_module(f"rope_exp.{folder}.{name}")
    for member in members:
        if not hasattr(module, member):
            reason = f"rope_exp/{folder}/{name}.py must define {member} (docs/extending.md)"
            raise ConfigError(key, name, reason)
    return module


def class_of(field: dataclasses.Field[Any], values: Any) -> Any:
    """Return the type of a key; of a section that is one of several, the one that `values` name."""
    if (key := field.metadata.get("choice")) is None:
        return field.type
    core = getattr(field.default, key)
    name = values.get(key, core) if isinstance(values, Mapping) else core
    if name == core:
        return type(field.default)
    return import_choice(field.name, name, f"{field.name}.{key}", core=core).Config


def parse(config: type[Any], values: Any) -> dict[str, Any]:
    """Return the sections of a dataclass from a plain mapping, which may leave some out."""
    known = {field.name: field for field in dataclasses.fields(config)}
    sections = convert(dict[str, Any], values)
    for key, value in sections.items():
        if key not in known:
            raise unknown_key(key, known)
        sections[key] = convert(class_of(known[key], value), value, key)
    return sections


def affecting_values(section: Any, *, departing: bool = False) -> dict[str, Any]:
    """Return every value below a section that can change a number, as a plain mapping.

    If `departing`, defaults are left out, so a key added later with a default that keeps the
    behaviour changes no identity. A choice that is not the default shows its name.
    """
    values = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if not field.metadata.get("affects_result", True):
            continue
        if dataclasses.is_dataclass(value):
            below = affecting_values(value, departing=departing)
            if type(value) is not type(field.default):
                below[field.metadata["choice"]] = getattr(value, field.metadata["choice"])
            if below:
                values[field.name] = below
        elif not (departing and value == field.default):
            values[field.name] = value
    return values


def suffix(section: Any, *skipped: str) -> str:
    """Return a label's suffix for keys that depart: -base500000, -trainable, -layers_1110."""
    text = ""
    for key, value in affecting_values(section, departing=True).items():
        if isinstance(value, tuple):
            value = "_" + "".join(map(str, value))
        elif isinstance(value, int | float):
            value = "" if value is True else f"{value:g}"
        if key not in skipped:
            text += f"-{key}{value}"
    return text


def must(allowed: str, holds: Callable[[Any], object]) -> AfterValidator:
    """Return a validator for a value of the annotated type, with its message."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(allowed)
        return value

    return AfterValidator(check)
