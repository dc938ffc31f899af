"""Sections of a config: declarations of keys, validation in one sentence, and choices by name.

This module names no key.
"""

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
    """Return a class as a section of a config: a frozen dataclass, checked by pydantic.

    Strict: neither true nor "3" is a number. A whole number is also a float.
    """
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return pydantic_dataclass(cls, frozen=True, config=strict)


def affects_result(default: Any, **metadata: Any) -> Any:
    """Declare a key that can change a number.

    A key with a plain default counts as one, too; use this to attach metadata.

    Args:
        default: the key's value in a config that leaves it out; of any type.
        metadata: statements about the key:
            needs: dotted attributes of the run's config, or NAME=VALUE. Without any one of them
                the key has no effect.
            kinds: the kinds of data that have the key; by default all.
            of_tokens: True if it determines the tokens of a corpus.
            variant_parameters: present if this key adds parameters: the other keys that determine
                how many; () if none do.
            assumption: "departing": the assumptions under a table list it only if it departs;
                "elsewhere": the assumptions never list it; the table or its caption shows it.
    Returns:
        The dataclass field, typed as any type, so that it can be a default.
    """
    return dataclasses.field(default=default, metadata=metadata)


def no_effect_on_result(default: Any, **metadata: Any) -> Any:
    """Declare a key, or a section, that changes no number: logging, saving, places, presets."""
    return dataclasses.field(default=default, metadata={"affects_result": False, **metadata})


def choice_of(default: Any) -> Any:
    """Declare a section with several classes, such as `attn`.

    Its first key names a leaf, whose `Config` is the class; the default's name means the default's
    class.

    Returns:
        The dataclass field, typed as `affects_result` types it.
    """
    key = dataclasses.fields(default)[0].name
    return dataclasses.field(default=default, metadata={"choice": key})


def metadata_of(section: Any, name: str, prefix: str = "") -> dict[str, Any]:
    """Return one entry of the metadata of each key that has it.

    Args:
        section: a dataclass of config keys, or an instance of one.
        name: of the entry, such as "needs" or "of_tokens" (see `affects_result`).
        prefix: is put before each key of the result, such as "data."; nothing is added between.
    """
    entries = {}
    for field in dataclasses.fields(section):
        if name in field.metadata:
            entries[prefix + field.name] = field.metadata[name]
    return entries


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
    """Return plain values as a type, checked strictly: neither true nor "3" is a number.

    Args:
        hint: any type that pydantic can check. A TypedDict drops keys that it does not declare; a
            dataclass refuses them.
        values: as JSON has them; another value is read as its `repr`.
        key: the dotted key of `values`, for the error; empty: they are a whole file or config.
    Raises:
        ConfigError: the values are not of the type; it names the first key at fault.
    """
    try:
        # Through JSON, because strict validation accepts tuples and dataclasses only from there.
        text = json.dumps(values, default=repr)
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        raise _to_config_error(error, hint, values, key) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(key or "its content", ..., first_line(error)) from error


def _to_config_error(error: ValidationError, hint: Any, values: Any, key: str) -> ConfigError:
    """Return pydantic's error as one about its first key at fault; arguments as of `convert`."""
    faults = error.errors()
    first = faults[0]
    location = first["loc"]
    where, value = _locate(location, values, key)
    if first["type"] == "missing":
        return ConfigError(_join(where, location[-1]), ..., "is missing")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        fields = dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ()
        return unknown_key(where, [f"{key}.{field.name}" for field in fields])

    # A value with several possible types has a fault for each.
    messages = []
    for fault in faults:
        path, _ = _locate(fault["loc"], values, key)
        if path == where and fault["msg"] not in messages:
            messages.append(fault["msg"])
    reason = ", or ".join(messages).replace("Value error, ", "")
    reason = re.sub(r"\b[A-Z][a-z]+ should ", "must ", reason)
    if first["type"] == "string_type" and isinstance(value, bool | int | float):
        # YAML and Hydra read 1e5, 007 and off as numbers and truth values.
        reason += f"""; in quotes it is one: "{where}='...'", and '...' in a file"""
    if not where:
        return ConfigError("its content", ..., reason)
    return ConfigError(where, value, reason)


def _locate(location: tuple[int | str, ...], values: Any, key: str) -> tuple[str, Any]:
    """Return the dotted key at one of pydantic's locations, and its value.

    A location also names the possible types of a value, and places in a list. These are skipped:
    ("stages", "tuple", 0) in {"stages": [1, 2]} with `key` "train" is ("train.stages", [1, 2]).
    """
    path = key
    value = values
    for part in location:
        if isinstance(value, Mapping) and part in value:
            path = _join(path, part)
            value = value[part]
    return path, value


def _join(path: str, part: int | str) -> str:
    """Return the dotted key of a part below a path, which may be empty."""
    return f"{path}.{part}".strip(".")


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
    """Import a leaf. A leaf is the file of a choice, rope_exp/FOLDER/NAME.py.

    Args:
        folder: the folder of the choices, such as "attn".
        name: the value of the key.
        key: the key or the word that gave the name, for the error.
        core: a name, or several with commas, that the caller knows without a file; only shown.
        members: names that the file must define.
    Returns:
        The module, which the caller casts to the `Protocol` of that folder.
    Raises:
        ConfigError: there is no such file or folder, or the file lacks a member.
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
    key = field.metadata.get("choice")
    if key is None:
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
