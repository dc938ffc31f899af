"""The Python files beside exported weights: copies of ours and a user's that need no rope_exp."""

import ast
import re
from pathlib import Path

import rope_exp
from rope_exp.errors import ConfigError
from rope_exp.sections import PeConfig

# The copies of modules, by the names under which a file may import them.
COPIES = {
    r"rope_exp(\.position\._encoding|\.encoding|\.model\.position)?": "encoding_rope_exp",
    r"rope_exp(\.model)?\.rope": "rope_rope_exp",
}
ENCODING = ("Position", "ScoreBias", "Sizes")
# An encoding of ours reads the same keys of either config.
OUR_CONFIG = "from rope_exp.sections import PeConfig"
THEIR_CONFIG = "from .configuration_rope_exp import RopeExpConfig as PeConfig"


def write_code(out: Path, pe: PeConfig) -> None:
    """Write what the copy of modeling_rope_exp.py imports, and its imports, into a folder."""
    root = Path(rope_exp.__file__).parent
    chosen = {"added_positions": pe.input, "score_bias": pe.bias}
    chosen = {name: choice for name, choice in chosen.items() if choice != "none"}
    files = ["rope", *(f"position/{name}" for name in ("_encoding", *chosen.values()))]
    texts = {
        name.rpartition("/")[2].strip("_"): (root / f"{name}.py").read_text(encoding="utf-8")
        for name in files
    }

    lines = [f"from .{chosen[name]}_rope_exp import make as make_{name}" for name in chosen]
    makers = [f'"{name}": make_{name}' for name in chosen]
    if pe.code is not None:
        texts["own"] = str(pe.source)
        lines.append(f"from .own_rope_exp import {pe.code.partition('.')[2]} as Own")
        makers.append('"own": lambda _, sizes: Own.placed(sizes)')
    lines.append(f"MAKERS = {{{', '.join(makers)}}}")
    modeling = (root / "export/modeling_rope_exp.py").read_text(encoding="utf-8")
    texts["modeling"], changed = re.subn(r"(?m)^MAKERS: .*", "\n".join(lines), modeling)
    assert changed == 1

    for name, text in texts.items():
        text = copied(text.replace(OUR_CONFIG, THEIR_CONFIG), pe)
        (out / f"{name}_rope_exp.py").write_text(text, encoding="utf-8")


def copied(source: str, pe: PeConfig) -> str:
    """Return a file's text with its imports of rope_exp changed to the copies', or refuse it."""
    for module, copy in COPIES.items():
        source = re.sub(rf"\bfrom\s+{module}(?=\s+import\b)", f"from .{copy}", source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        has_other = re.search(r"\brope_exp\b", ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and node.module == "encoding_rope_exp":
            has_other = not {alias.name for alias in node.names} <= set(ENCODING)
        if has_other:
            reason = f"has `{ast.unparse(node)}`, and cannot be exported to transformers"
            raise ConfigError("pe.code", pe.code, reason)
    return source
