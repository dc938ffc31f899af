"""The copy of a position encoding of a user's own file that lies beside exported weights.

It imports no rope_exp: the modules of it that a class may need lie beside it, as they are here.
"""

import ast
import re
from pathlib import Path

import rope_exp
from rope_exp.errors import ConfigError
from rope_exp.sections import PeConfig

# The names under which modules of this package are copied; each imports torch alone.
COPIED = {
    "rope_exp": ("position_rope_exp", "encoding.py"),
    "rope_exp.encoding": ("position_rope_exp", "encoding.py"),
    "rope_exp.model.position": ("position_rope_exp", "encoding.py"),
    "rope_exp.rope": ("rope_rope_exp", "rope.py"),
    "rope_exp.model.rope": ("rope_rope_exp", "rope.py"),
}
NOTHING = "OWN: Any = None"
OWN_FILE = "own_rope_exp"


def write_own(out: Path, pe: PeConfig) -> None:
    """Write the user's file, and what it imports, into an exported folder; it may have none."""
    if pe.code is None:
        return
    files = {OWN_FILE: own_file(pe)}
    for name, path in COPIED.values():
        files[name] = (Path(rope_exp.__file__).parent / path).read_text(encoding="utf-8")
    modeling = (out / "modeling_rope_exp.py").read_text(encoding="utf-8")
    assert modeling.count(NOTHING) == 1
    name = pe.code.partition(".")[2]
    files["modeling_rope_exp"] = modeling.replace(NOTHING, f"from .{OWN_FILE} import {name} as OWN")
    for name, text in files.items():
        (out / f"{name}.py").write_text(text, encoding="utf-8")


def own_file(pe: PeConfig) -> str:
    """Return the user's file with its imports of rope_exp changed to the copies'.

    Raises:
        ConfigError: it imports something of rope_exp that is not copied.
    """
    assert pe.source is not None
    # Not splitlines(), which knows more ends of a line than Python has.
    lines = pe.source.split("\n")
    for node in ast.walk(ast.parse(pe.source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        if not any(module.partition(".")[0] == "rope_exp" for module in modules):
            continue
        names = {alias.name for alias in node.names}
        copied = COPIED.get(modules[0], ("", ""))[0]
        line = node.lineno - 1
        new, changed = re.subn(
            rf"from\s+{re.escape(modules[0])}\s", f"from .{copied} ", lines[line], count=1
        )
        is_other = modules == ["rope_exp"] and not names <= {"Position", "Sizes"}
        if isinstance(node, ast.Import) or not copied or is_other or not changed:
            raise ConfigError(
                "pe.code",
                pe.code,
                f"imports {', '.join(sorted(names))} of {modules[0]}, and cannot be exported to "
                "transformers; that takes `from rope_exp import Position, Sizes`, or from "
                "rope_exp.rope",
            )
        lines[line] = new
    return "\n".join(lines)
