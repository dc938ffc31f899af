"""The Python file of a user's own position encoding: found, checked and carried by the config.

`pe.code=wave.Wave` names a class in wave.py, which lies in a folder of --config-dir. The config
carries the file's text, so a run's config.yaml and a record hold all that they were made by, and
its SHA-256 is part of their identity.
"""

import ast
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.config.variants import source_sha256
from rope_exp.system.errors import ConfigError, first_line

ALLOWED = {*sys.stdlib_module_names, "torch", "numpy", "rope_exp"}


def with_source(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Return the config with the text of the file that pe.code names, if it names one.

    Args:
        folders: in which the file may lie; the first that has it.
    Raises:
        ConfigError: there is no such file, it is not Python, it lacks the class, or it imports
            another package.
    """
    code = config.pe.code
    if code is None or config.pe.source is not None:
        return config

    file = f"{code.partition('.')[0]}.py"
    found = [folder / file for folder in folders if (folder / file).is_file()]
    if not found:
        raise ConfigError(
            "pe.code", code, f"there is no {file} in configs/ or a folder of --config-dir"
        )
    try:
        source = found[0].read_text(encoding="utf-8-sig")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError("pe.code", code, f"{found[0]}{where}: {first_line(error)}") from None

    name = code.partition(".")[2]
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        raise ConfigError("pe.code", code, f"{found[0]} has no class {name}")
    for node in ast.walk(tree):
        _check_import(node, code, found[0])
    pe = replace(config.pe, source=source, code_sha256=source_sha256(source))
    return replace(config, pe=pe)


def _check_import(node: ast.AST, code: str, path: Path) -> None:
    """Refuse an import of a file or package that a run's folder does not hold."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = ["." if node.level else str(node.module)]
    else:
        return
    for name in names:
        if name.split(".")[0] not in ALLOWED:
            where = f"{path}, line {node.lineno}"
            allowed = f"{where}: may import Python's library, torch, numpy and rope_exp, not {name}"
            raise ConfigError("pe.code", code, allowed)
