"""Write docs/config.md: every key, its default, its values and its meaning.

    python scripts/config_doc.py

All of it comes from the dataclasses of sections.py, config.py and the leaves. A meaning is the
comment above a field; a field that a leaf declares again keeps its base's, and the key that names
a choice needs none.
"""

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError
from rope_exp.identity import choice_names, class_of, convert
from rope_exp.machine import ROOT

PAGE = ROOT / "docs" / "config.md"
HEAD = """# Every key

Written by `python scripts/config_doc.py` from the dataclasses of the package. A choice in `configs`
may replace a default: `model=nano` sets `schedule.warmup_fraction=0.2`, and `data=files`
sets `data.holdout_fraction=0.01`. `rope-exp train --cfg job` shows the values of one run.
"""
LIMITS = {
    "ge": "from",
    "gt": "above",
    "le": "to",
    "lt": "and below",
    "multiple_of": "in steps of",
    "min_length": "of length from",
    "max_length": "to",
}
FIELD = re.compile(r"((?:^    # .*\n)*)^    (\w+): ", re.MULTILINE)


def text() -> str:
    """Return the page."""
    parts = [HEAD, *_table("", RunConfig, {})]
    for field in dataclasses.fields(RunConfig):
        choice = field.metadata.get("choice")
        named = {"name": f"Name of the choice in configs/{field.name}."}
        names = [""]
        if choice:
            core = getattr(field.default, choice)
            named = {choice: f"{core}, or a file of {field.name}/."}
            names = [core, *choice_names(field.name)]
        for name in names:
            section = class_of(field, {choice: name})
            if not dataclasses.is_dataclass(section):
                continue
            where = f", where `{field.name}.{choice}={name}`" if choice else ""
            about = inspect.cleandoc(section.__doc__ or "")
            parts += ["", f"## {field.name}{where}", "", about, ""]
            parts += _table(f"{field.name}.", section, named)
    return "\n".join(parts) + "\n"


def _table(prefix: str, section: Any, named: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the table of a dataclass's own keys.

    Args:
        prefix: the section and a dot; empty for keys of no section.
        section: the dataclass.
        named: the meaning of the key that names the choice, if no comment says it.
    """
    hints = typing.get_type_hints(section, include_extras=True)
    meanings: dict[str, str] = {}
    for base in reversed(section.__mro__[:-1]):
        for comment, name in FIELD.findall(inspect.getsource(base)):
            meanings[name] = comment or meanings.get(name, "")

    yield "| key | default | values | meaning |\n|---|---|---|---|"
    for field in dataclasses.fields(section):
        if not dataclasses.is_dataclass(field.default):
            comment = meanings[field.name] or named.get(field.name, "")
            meaning = re.sub(r"\s*\n?    # ", " ", comment).strip()
            cells = [f"`{json.dumps(field.default)}`", _values(hints[field.name]), meaning]
            yield " | ".join([f"| `{prefix}{field.name}`", *cells]) + " |"


def _values(hint: Any) -> str:
    """Return a description of the values that a key allows."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return ", or ".join(map(_values, options))
    if typing.get_origin(hint) is Annotated and isinstance(options[1], FieldInfo):
        limits: dict[str, float] = {}
        for limit in options[1].metadata:
            limits |= {name: getattr(limit, name) for name in LIMITS if hasattr(limit, name)}
        texts = [f"{LIMITS[key]} {value:,}" for key, value in limits.items() if value != 2**63]
        if texts:
            return " ".join([_values(options[0]), *texts])
    if typing.get_origin(hint) is Annotated and typing.get_origin(options[0]) is tuple:
        return _values(options[0])
    if typing.get_origin(hint) is tuple:
        # All items of a key's list have one type.
        return f"a list, each item {_values(options[0])}"
    if hint is type(None):
        return "null"
    # The words of the error for a wrong value.
    for wrong in ("\0", None):
        try:
            convert(hint, wrong)
        except ConfigError as error:
            return str(error.args[2]).removeprefix("must ").removeprefix("be ")
    raise AssertionError(hint)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
