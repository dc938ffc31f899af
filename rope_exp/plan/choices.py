"""The choices of every group, for `--help`: one line each, from the first comment of its file."""

import re
from itertools import takewhile
from pathlib import Path
from textwrap import shorten

from hydra.core.global_hydra import GlobalHydra

# Campaigns do not configure a run, and experiments choose the rows of a table.
LEFT_OUT = ("campaign", "row")
END = re.compile(r"\.(?: |$)|: `")
LONGEST = 100  # characters per line
SIZE = re.compile(r"([\d.]+)([kMB]) ")
UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}


def choices() -> str:
    """Return the groups, each with its choices; sizes by size, others by name."""
    search_path = GlobalHydra.instance().config_loader().get_search_path().get_path()
    folders = [Path(source.path.removeprefix("file://")) for source in search_path]
    told: dict[str, dict[str, str]] = {}
    # Hydra's own packages in the search path are not folders, and match nothing.
    for folder in folders:
        for path in folder.glob("*/*.yaml"):
            if path.parent.name not in LEFT_OUT:
                told.setdefault(path.parent.name, {})[path.stem] = _line(path)

    lines = []
    for group, found in sorted(told.items()):
        lines += ["", group]
        width = max(map(len, found))
        for name, line in sorted(found.items(), key=lambda item: (_size(item[1]), item[0])):
            lines.append(f"  {name:{width}}  {line}".rstrip())
    # Hydra substitutes $NAMES.
    return "\n".join(lines[1:]).replace("$", "$$")


def _line(path: Path) -> str:
    """Return the first sentence of a file's first comment, or its keys if it has no comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("# @package")]
    comment = list(takewhile(lambda line: line.startswith("# "), lines))
    if not comment:
        words = ", ".join(line for line in lines if not line.startswith("name: "))
    else:
        words = END.split(" ".join(line.removeprefix("# ") for line in comment))[0]
    return shorten(words, LONGEST, placeholder=" ...")


def _size(line: str) -> float:
    """Return the size at the beginning of a line, or 0 if there is none."""
    found = SIZE.match(line)
    return float(found[1]) * UNITS[found[2]] if found else 0.0
