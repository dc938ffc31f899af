"""From a plain mapping to frozen dataclasses: types, ranges, and errors that name the key. Knows no key by name."""

import dataclasses
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from rope_exp.system.errors import ConfigError

# Of ASCII and Latin-1, line separators, and halves of a surrogate pair: what is no text in UTF-8, or no single line.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Rule:
    """What a value of an annotated type must satisfy, and how to say so."""

    allowed: str
    holds: Callable[[Any], bool]


def convert(hint: Any, value: Any, key: str) -> Any:
    """`value` as the annotated type `hint`, or a ConfigError that names `key`."""
    if dataclasses.is_dataclass(hint):
        return _convert_section(hint, value, key)
    if not _matches(hint, value):
        raise ConfigError(key, value, _allowed(hint))
    return _cast(hint, value)


def _convert_section(section: Any, values: Any, key: str) -> Any:
    prefix = f"{key}." if key else ""
    if not isinstance(values, Mapping):
        raise ConfigError(key or "config", values, "must be a group of keys")
    hints = typing.get_type_hints(section, include_extras=True)
    for name in values:
        if name not in hints:
            raise unknown_key(f"{prefix}{name}", known_keys(section, prefix))
    for name in hints:
        if name not in values:
            raise ConfigError(f"{prefix}{name}", None, "is missing")
    return section(
        **{name: convert(hint, values[name], f"{prefix}{name}") for name, hint in hints.items()}
    )


def _matches(hint: Any, value: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _matches(args[0], value) and all(rule.holds(value) for rule in args[1:])
    if origin in (types.UnionType, typing.Union):
        return any(_matches(option, value) for option in args)
    if origin is Literal:
        return isinstance(value, str) and value in args
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        items = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return len(items) == len(value) and all(map(_matches, items, value))
    if hint is float:
        # A whole number may have more digits than a float can hold.
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint is str:
        return isinstance(value, str) and CONTROL.search(value) is None
    return type(value) is hint


def _cast(hint: Any, value: Any) -> Any:
    """A matching value in its canonical type, so that 1 and 1.0 hash alike."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _cast(args[0], value)
    if origin in (types.UnionType, typing.Union):
        return _cast(next(option for option in args if _matches(option, value)), value)
    if origin is tuple:
        items = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return tuple(map(_cast, items, value))
    return float(value) if hint is float else value


def _allowed(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " and ".join(rule.allowed for rule in args[1:])
    if origin in (types.UnionType, typing.Union):
        return ", or ".join(_allowed(option) for option in args)
    if origin is Literal:
        return f"must be one of {', '.join(args)}" if len(args) > 1 else f"must be {args[0]}"
    if origin is tuple:
        count = "any number" if args[-1] is Ellipsis else str(len(args))
        return f"must be a list of {count}, each of which {_allowed(args[0])}"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a finite number",
        str: "text without control characters",
        dict: "a group of keys",
    }
    return f"must be {names.get(hint, 'null')}"


def unknown_key(key: str, known: Sequence[str]) -> ConfigError:
    """The error for a key that no section has, with the nearest that exists; without its value, perhaps a secret."""
    near = get_close_matches(key, known, n=1, cutoff=0.75) or [
        full for full in known if full.endswith(f".{key}")
    ]
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "`python train.py --cfg job` prints the keys that there are"
    )
    return ConfigError(key, ..., f"there is no such key; {hint}")


def known_keys(section: Any, prefix: str = "") -> list[str]:
    """The full path of every key below a section."""
    keys: list[str] = []
    for name, hint in typing.get_type_hints(section).items():
        keys += (
            known_keys(hint, f"{prefix}{name}.")
            if dataclasses.is_dataclass(hint)
            else [prefix + name]
        )
    return keys


def check(values: Any, fields: Mapping[str, Any]) -> None:
    """Refuse a mapping unless each of `fields` (a name to a type, as dataclasses annotate theirs) is there and matches.

    Raises:
        ConfigError: naming the first field that does not.
    """
    if not isinstance(values, Mapping):
        raise ConfigError("its content", values, "must be a group of keys")
    for name, hint in fields.items():
        if name not in values:
            raise ConfigError(name, ..., "is missing")
        if not _matches(hint, values[name]):
            raise ConfigError(name, values[name], _allowed(hint))


def _slug_rule(what: str) -> Rule:
    pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}")
    return Rule(
        f"{what} is 1 to 64 letters, digits, spaces or . _ + -, beginning with a letter or digit",
        lambda text: pattern.fullmatch(text) is not None and ".." not in text,
    )


def _is_path(text: str) -> bool:
    """Whether the system could have it: else the first use of it would fail, after something was written."""
    try:
        path = Path(text).expanduser()  # RuntimeError: ~ of a user that there is not
    except RuntimeError:
        return False
    return (
        text != ""
        and all(len(os.fsencode(part)) <= 255 for part in path.parts)
        and len(os.fsencode(path)) <= 3840
    )


Count = Annotated[
    int, Rule("must be a whole number of at least 1 and below 2^63", lambda n: 1 <= n < 2**63)
]
Natural = Annotated[
    int, Rule("must be a whole number of at least 0 and below 2^63", lambda n: 0 <= n < 2**63)
]
Seed = Annotated[int, Rule("must be a whole number from 0 to 2^63 - 1", lambda n: 0 <= n < 2**63)]
Positive = Annotated[float, Rule("must be a number above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Rule("must be a number of at least 0", lambda x: x >= 0)]
Share = Annotated[float, Rule("must be a number from 0 to 1", lambda x: 0 <= x <= 1)]
OpenShare = Annotated[float, Rule("must be a number above 0 and below 1", lambda x: 0 < x < 1)]
Name = Annotated[str, _slug_rule("a name")]
# The system's limit is 4,096 bytes; the rest is for what stands below a run's folder.
PathText = Annotated[
    str,
    Rule(
        "must be a path without control characters, of at most 3,840 bytes and 255 a name, beginning with ~ only where "
        "it names a user's home",
        _is_path,
    ),
]
_is_sha256 = re.compile("[0-9a-f]{64}").fullmatch
Sha256 = Annotated[
    str, Rule("must be 64 hexadecimal digits", lambda text: _is_sha256(text) is not None)
]
OrderSha256 = Annotated[  # empty before the first step
    str,
    Rule(
        "must be 64 hexadecimal digits, or empty",
        lambda text: not text or _is_sha256(text) is not None,
    ),
]
