"""From plain mappings to typed values: defaults, types, ranges, and errors that name the key.

One mechanism serves configs (frozen dataclasses: unknown keys are refused, missing ones take
their defaults) and the JSON files that we read back (TypedDicts: every key must be there, further
ones are let through). This module knows no key by name.
"""

import dataclasses
import json
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from rope_exp.system.errors import ConfigError

# Of ASCII and Latin-1, line separators, and halves of a surrogate pair: what is no text in UTF-8,
# or no single line.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def numeric(default: Any) -> Any:
    """Declare a field whose value can change a loss: it is part of a run's identity."""
    return dataclasses.field(default=default, metadata={"numeric": True})


def setting(default: Any) -> Any:
    """Declare a field that changes no number: logging, saving, places, names of presets."""
    return dataclasses.field(default=default, metadata={"numeric": False})


@dataclass(frozen=True)
class Rule:
    """What a value of an annotated type must satisfy, and how to say so."""

    allowed: str
    holds: Callable[[Any], bool]


# -- conversion --------------------------------------------------------------------------------


def convert(hint: Any, value: Any, key: str) -> Any:
    """Return `value` as the type `hint`: a dataclass, one of several, a TypedDict, or a plain type.

    Raises:
        ConfigError: naming `key`, or the key below it that is at fault.
    """
    if _sections(hint):
        section = _chosen(hint, value, key)
        return section(**_converted(section, value, key))

    if typing.is_typeddict(hint):
        converted = _converted(hint, value, key)
        return dict(value) | converted

    try:
        return _plainly(hint, value)
    except ValueError:
        raise ConfigError(key, value, _allowed(hint)) from None


def fill(hint: Any, values: Any, key: str = "") -> Any:
    """Return a plain mapping with the default of every key that it leaves out; values unchecked."""
    if not _sections(hint):
        return values

    section = _chosen(hint, values, key)
    hints = typing.get_type_hints(section, include_extras=True)
    filled = dict(values)
    for field in dataclasses.fields(section):
        default = {} if _sections(hints[field.name]) else _plain(field.default)
        below = values.get(field.name, default)
        filled[field.name] = fill(hints[field.name], below, _below(key, field.name))
    return filled


def _converted(section: Any, values: Any, key: str) -> dict[str, Any]:
    """Return the converted value of each key of `section` that `values` holds."""
    if not isinstance(values, Mapping):
        raise ConfigError(key or "its content", values, "must be a group of keys")

    hints = typing.get_type_hints(section, include_extras=True)
    if typing.is_typeddict(section):
        for name in sorted(hints.keys() - values.keys()):
            raise ConfigError(_below(key, name), ..., "is missing")
    else:
        # Some keys may be no text.
        for name in sorted(values.keys() - hints.keys(), key=str):
            raise unknown_key(_below(key, name), known_keys(section, f"{key}." if key else ""))

    there = [name for name in hints if name in values]
    return {name: convert(hints[name], values[name], _below(key, name)) for name in there}


def _sections(hint: Any) -> tuple[Any, ...]:
    """Return the dataclasses that a group of keys may be: one, several, or none."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return options if all(map(dataclasses.is_dataclass, options)) else ()


def _chosen(hint: Any, values: Any, key: str) -> Any:
    """Return the dataclass that `values` are of: of several, the one whose tag they name."""
    if not isinstance(values, Mapping):
        raise ConfigError(key or "config", values, "must be a group of keys")

    options = _sections(hint)
    if len(options) == 1:
        return options[0]

    name = values.get(tag(options[0]), getattr(options[0], tag(options[0])))
    for option in options:
        if getattr(option, tag(option)) == name:
            return option
    allowed = ", ".join(getattr(option, tag(option)) for option in options)
    raise ConfigError(_below(key, tag(options[0])), name, f"must be one of {allowed}")


def tag(section: Any) -> str:
    """Return the key that tells a dataclass from its alternatives: its first, a Literal."""
    return dataclasses.fields(section)[0].name


def _plainly(hint: Any, value: Any) -> Any:
    """Return a value as a plain type, canonical: 1 and 1.0 hash alike, and a list is a tuple.

    Raises:
        ValueError: it is none.
    """
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)

    if origin is Annotated:
        plain = _plainly(args[0], value)
        fits = all(rule.holds(plain) for rule in args[1:])
    elif origin in (types.UnionType, typing.Union):
        for option in args:
            with suppress(ValueError):
                return _plainly(option, value)
        fits = False
    elif origin is tuple:
        fits = isinstance(value, list | tuple)
        items = args[:1] * len(value) if fits and args[-1] is Ellipsis else args
        plain = tuple(map(_plainly, items, value)) if fits else ()
        fits = fits and len(items) == len(value)
    elif hint is float:
        # A whole number may have more digits than a float can hold.
        fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
        plain = float(value) if fits else value
    else:
        plain = value
        if origin is Literal:
            fits = isinstance(value, str) and value in args
        elif hint is str:
            fits = isinstance(value, str) and CONTROL.search(value) is None
        else:
            fits = type(value) is hint

    if not fits:
        raise ValueError(value)
    return plain


def _allowed(hint: Any) -> str:
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)

    if origin is Annotated:
        return " and ".join(rule.allowed for rule in args[1:])
    if origin in (types.UnionType, typing.Union):
        return ", or ".join(_allowed(option) for option in args)
    if origin is Literal:
        return f"must be one of {', '.join(args)}" if len(args) > 1 else f"must be {args[0]}"
    if origin is tuple:
        count = "any number" if args[-1] is Ellipsis else str(len(args))
        return f"must be a list of {count}, each of which {_allowed(args[0])}"

    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "text without control characters",
        dict: "a group of keys",
    }
    return f"must be {words.get(hint, 'null')}"


# -- keys --------------------------------------------------------------------------------------


def known_keys(hint: Any, prefix: str = "") -> list[str]:
    """Return the full path of every key below a section, whichever alternative has it."""
    keys: dict[str, None] = {}
    for section in _sections(hint):
        for name, below in typing.get_type_hints(section, include_extras=True).items():
            nested = known_keys(below, f"{prefix}{name}.") or [prefix + name]
            keys |= dict.fromkeys(nested)
    return list(keys)


def unknown_key(key: str, known: Sequence[str]) -> ConfigError:
    """Return the error for a key that no section has, with the nearest that exists.

    Its value is not shown: it may be a secret.
    """
    near = get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or [full for full in known if full.endswith(f".{key}")]
    hint = f"did you mean {near[0]}?" if near else "`python train.py --cfg job` prints the keys"
    return ConfigError(key, ..., f"there is no such key; {hint}")


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else str(name)


# -- identity ----------------------------------------------------------------------------------


def numeric_values(section: Any) -> dict[str, Any]:
    """Return every value below a section that can change a number, as a plain mapping."""
    return _selected(section, lambda field, value: True)


def departures(section: Any) -> dict[str, Any]:
    """Return the values that can change a number and are not their defaults, as a plain mapping.

    So a key that is added later, with a default that keeps the behaviour, changes no identity. A
    section that is not the default alternative shows its tag.
    """
    return _selected(section, lambda field, value: value != field.default)


def _selected(section: Any, wanted: Callable[[Any, Any], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if not dataclasses.is_dataclass(value):
            if field.metadata["numeric"] and wanted(field, value):
                found[field.name] = _plain(value)
            continue

        below = _selected(value, wanted)
        default: Any = field.default_factory
        if type(value) is not default:
            below = {tag(value): getattr(value, tag(value))} | below
        if below:
            found[field.name] = below
    return found


def _plain(value: Any) -> Any:
    """Return a value, or a section, in the types that JSON and YAML have."""
    return json.loads(json.dumps(value, default=dataclasses.asdict))


# -- kinds of values ---------------------------------------------------------------------------


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}", text) is not None and ".." not in text


def _is_path(text: str) -> bool:
    """Whether the system could have it: else its first use would fail, perhaps late."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # ~ of a user that there is not
        return False
    names_fit = all(len(os.fsencode(part)) <= 255 for part in path.parts)
    return text != "" and names_fit and len(os.fsencode(path)) <= 3840


def _is_sha256(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{64}", text) is not None


def _whole(least: int) -> Rule:
    allowed = f"must be a whole number of at least {least} and below 2^63"
    return Rule(allowed, lambda number: least <= number < 2**63)


Count = Annotated[int, _whole(1)]
Natural = Annotated[int, _whole(0)]
Seed = Annotated[int, Rule("must be a whole number from 0 to 2^63 - 1", lambda n: 0 <= n < 2**63)]
Positive = Annotated[float, Rule("must be a number above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Rule("must be a number of at least 0", lambda x: x >= 0)]
Share = Annotated[float, Rule("must be a number from 0 to 1", lambda x: 0 <= x <= 1)]
OpenShare = Annotated[float, Rule("must be a number above 0 and below 1", lambda x: 0 < x < 1)]
Name = Annotated[
    str,
    Rule(
        "a name is 1 to 64 letters, digits, spaces or . _ + -, beginning with a letter or digit",
        _is_name,
    ),
]
# The system's limit is 4,096 bytes; the rest is for what stands below a run's folder.
PathText = Annotated[
    str,
    Rule(
        "must be a path without control characters, of at most 3,840 bytes and 255 a name, "
        "beginning with ~ only where it names a user's home",
        _is_path,
    ),
]
Sha256 = Annotated[str, Rule("must be 64 hexadecimal digits", _is_sha256)]
# Empty before the first step.
OrderSha256 = Annotated[
    str, Rule("must be 64 hexadecimal digits, or empty", lambda text: not text or _is_sha256(text))
]


def check(values: Any, fields: Mapping[str, Any]) -> None:
    """Refuse a mapping unless each of `fields` is there and of its type.

    Raises:
        ConfigError: naming the first field that does not.
    """
    convert(typing.TypedDict("_Fields", dict(fields)), values, "")  # type: ignore[operator]
