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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from rope_exp.system.errors import ConfigError

# Of ASCII and Latin-1, line separators, and halves of a surrogate pair: what is no text in UTF-8,
# or no single line.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# What an error calls a value of a plain type.
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text without control characters",
    dict: "a group of keys",
}


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
    holds: Callable[[Any], object]


# -- conversion --------------------------------------------------------------------------------


def convert(hint: Any, value: Any, key: str) -> Any:
    """Return `value` as the type `hint`: a dataclass, one of several, a TypedDict, or a plain type.

    Raises:
        ConfigError: naming `key`, or the key below it that is at fault.
    """
    if typing.get_origin(hint) is typing.NotRequired:
        (hint,) = typing.get_args(hint)
    options = _sections(hint)
    if not options:
        try:
            return _plainly(hint, value)
        except ValueError as error:
            raise ConfigError(key, value, str(error)) from None
    if not isinstance(value, Mapping):
        raise ConfigError(key or "its content", value, "must be a group of keys")

    prefix = f"{key}." if key else ""
    section = _chosen(options, value, prefix)
    hints = typing.get_type_hints(section, include_extras=True)

    # Of a record every key must be there; of a config none may be that is not known.
    is_record = typing.is_typeddict(section)
    converted = dict(value)
    for name, below in hints.items():
        if name in value:
            converted[name] = convert(below, value[name], prefix + name)
        elif is_record and name in section.__required_keys__:
            raise ConfigError(prefix + name, ..., "is missing")
    if is_record:
        return converted
    for name in value:
        if name not in hints:
            raise unknown_key(f"{prefix}{name}", known_keys(section, prefix))
    return section(**converted)


def defaults_of(section: Any) -> dict[str, Any]:
    """Return the declared default of every key of a dataclass, as a plain mapping."""
    defaults = {}
    for field in dataclasses.fields(section):
        default = field.default
        is_section = dataclasses.is_dataclass(default)
        defaults[field.name] = defaults_of(type(default)) if is_section else default
    plain: dict[str, Any] = json.loads(json.dumps(defaults))
    return plain


def alternatives(section: Any) -> dict[str, dict[str, Any]]:
    """Return the dataclasses that a section may be, by their tags, where there are several."""
    found = {}
    for name, hint in typing.get_type_hints(section).items():
        options = _sections(hint)
        if len(options) > 1:
            found[name] = {getattr(option, tag(option)): option for option in options}
    return found


def _sections(hint: Any) -> tuple[Any, ...]:
    """Return what a group of keys may be: one dataclass or TypedDict, several dataclasses, none."""
    if typing.is_typeddict(hint):
        return (hint,)
    options = typing.get_args(hint) or (hint,)
    return options if all(map(dataclasses.is_dataclass, options)) else ()


def _chosen(options: Sequence[Any], values: Mapping[str, Any], prefix: str) -> Any:
    """Return the one dataclass that `values` are of: of several, the one whose tag they name."""
    if len(options) == 1:
        return options[0]

    key = tag(options[0])
    names = [getattr(option, key) for option in options]
    name = values.get(key, names[0])
    if name not in names:
        raise ConfigError(prefix + key, name, f"must be one of {', '.join(names)}")
    return options[names.index(name)]


def tag(section: Any) -> str:
    """Return the key that tells a dataclass from its alternatives: its first, a Literal."""
    return dataclasses.fields(section)[0].name


def _plainly(hint: Any, value: Any) -> Any:
    """Return a value as a plain type, canonical: 1 and 1.0 hash alike, and a list is a tuple.

    Raises:
        ValueError: it is none; the message says what is allowed.
    """
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is dict:
        # What is below is whoever's it is to check.
        hint = dict
    allowed = f"must be {WORDS.get(hint, 'null')}"
    plain = value
    fits = False

    if origin is Annotated:
        kind, rule = args
        allowed = rule.allowed
        with suppress(ValueError):
            plain = _plainly(kind, value)
            fits = rule.holds(plain)
    elif origin in (types.UnionType, typing.Union):
        refusals = []
        for option in args:
            try:
                return _plainly(option, value)
            except ValueError as error:
                refusals.append(str(error))
        allowed = "must be " + ", or ".join(each.removeprefix("must be ") for each in refusals)
    elif origin is tuple:
        allowed = "must be a list"
        if isinstance(value, list | tuple):
            items = args[:1] * len(value) if args[-1] is Ellipsis else args
            allowed = f"must be a list of {len(items)}"
            fits = len(items) == len(value)
            plain = tuple(map(_plainly, items, value))
    elif origin is Literal:
        allowed = f"must be one of {', '.join(args)}" if len(args) > 1 else f"must be {args[0]}"
        fits = value in args
    elif hint is float:
        # A whole number may have more digits than a float can hold.
        fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
        plain = float(value) if fits else value
    else:
        fits = type(value) is hint and not (hint is str and CONTROL.search(value))

    if not fits:
        raise ValueError(allowed)
    return plain


def has_aliases(text: str) -> bool:
    """Whether a YAML text holds aliases: a few hundred bytes of them can unfold to any size.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    # The search is cheap, and finds every text that could have one.
    tokens = yaml.scan(text) if re.search(r"\*[\w-]", text) else ()
    return any(isinstance(token, yaml.AliasToken) for token in tokens)


# -- keys --------------------------------------------------------------------------------------


def known_keys(hint: Any, prefix: str = "") -> set[str]:
    """Return the full path of every key below a section, whichever alternative has it."""
    keys = set()
    for section in _sections(hint):
        for name, below in typing.get_type_hints(section).items():
            keys |= known_keys(below, f"{prefix}{name}.") or {prefix + name}
    return keys


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a key that no section has, with the nearest that exists.

    Its value is not shown: it may be a secret.
    """
    near = get_close_matches(key, known, n=1, cutoff=0.75)
    near += sorted(full for full in known if full.endswith(f".{key}"))
    hint = f"did you mean {near[0]}?" if near else "`rope-exp train --cfg job` prints the keys"
    return ConfigError(key, ..., f"there is no such key; {hint}")


# -- identity ----------------------------------------------------------------------------------


def numeric_values(section: Any, *, departing: bool = False) -> dict[str, Any]:
    """Return every value below a section that can change a number, as a plain mapping.

    Args:
        departing: leave out those that are their defaults. So a key that is added later, with a
            default that keeps the behaviour, changes no identity. A section that is not the
            default alternative shows its tag.
    """
    found = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            below = numeric_values(value, departing=departing)
            if type(value) is not type(field.default):
                below[tag(value)] = getattr(value, tag(value))
            if below:
                found[field.name] = below
        elif field.metadata["numeric"] and not (departing and value == field.default):
            found[field.name] = value
    return found


def labelled(key: str, value: Any) -> str:
    """Return how a label shows a key that departs: -base500000, -trainable, -layers_1110."""
    spelled = value
    if isinstance(value, int | float):
        spelled = f"{value:g}"
    elif isinstance(value, tuple):
        spelled = "_" + "".join(map(str, value))
    return f"-{key}" if value is True else f"-{key}{spelled}"


# -- kinds of values ---------------------------------------------------------------------------


def _is_path(text: str) -> bool:
    """Whether the system could have it: else its first use would fail, perhaps late."""
    path = os.fsencode(os.path.expanduser(Path(text)))
    names_fit = all(len(name) <= 255 for name in path.split(b"/"))
    # What still begins with ~ names a user that there is not.
    return text != "" and names_fit and len(path) <= 3840 and not path.startswith(b"~")


def whole(allowed: str, least: int, most: int = 2**63 - 1) -> Rule:
    """Return the rule of whole numbers from `least` to `most`, which `allowed` says in words."""
    return Rule(f"must be a whole number {allowed}", lambda number: least <= number <= most)


Count = Annotated[int, whole("of at least 1 and below 2^63", 1)]
Natural = Annotated[int, whole("of at least 0 and below 2^63", 0)]
Seed = Natural
Positive = Annotated[float, Rule("must be a number above 0", lambda x: x > 0)]
NonNegative = Annotated[float, Rule("must be a number of at least 0", lambda x: x >= 0)]
Share = Annotated[float, Rule("must be a number from 0 to 1", lambda x: 0 <= x <= 1)]
OpenShare = Annotated[float, Rule("must be a number above 0 and below 1", lambda x: 0 < x < 1)]
Name = Annotated[
    str,
    Rule(
        "a name is 1 to 64 letters, digits, spaces or . _ + -, beginning with a letter or digit",
        re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}").fullmatch,
    ),
]
# wandb's limit.
Tag = Annotated[str, Rule("a tag is 1 to 64 characters", lambda tag: 1 <= len(tag) <= 64)]
# The system's limit is 4,096 bytes; the rest is for what stands below a run's folder.
PathText = Annotated[
    str,
    Rule(
        "must be a path without control characters, of at most 3,840 bytes and 255 a name, "
        "beginning with ~ only where it names a user's home",
        _is_path,
    ),
]
Sha256 = Annotated[str, Rule("must be 64 hexadecimal digits", re.compile("[0-9a-f]{64}").fullmatch)]
# Empty before the first step.
OrderSha256 = Annotated[
    str,
    Rule("must be 64 hexadecimal digits, or empty", re.compile("([0-9a-f]{64})?").fullmatch),
]
