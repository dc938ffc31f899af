"""How a position encoding of a user's own file is loaded, and placed in a model."""

import ast
import functools
import linecache
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.encoding import Position
from rope_exp.errors import ConfigError, first_line, log, out_of_memory
from rope_exp.sections import Architecture, PeConfig, source_sha256

# Packages that a user's file may import.
MAY_IMPORT = {*sys.stdlib_module_names, "torch", "numpy", "rope_exp"}
# In the name of each parameter of a user's class.
OWN = ".own."


def sizes_of(architecture: Architecture) -> dict[str, Any]:
    """Return the sizes that a position is told of."""
    model = architecture.model
    return {
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.features_per_head,
        "num_hidden_layers": model.num_hidden_layers,
        "num_positions": architecture.num_positions,
        "causal": architecture.causal,
    }


def make_own(architecture: Architecture, layer: int | None) -> Position | None:
    """Return the instance of a layer, or of the input (None); None if it does nothing there.

    Raises:
        ConfigError: the file or the class fails; its traceback is logged.
    """
    pe = architecture.pe
    if pe.code is None:
        return None
    own = class_of(pe)
    with explained_by(pe):
        return own.placed(layer, **sizes_of(architecture))


def class_of(pe: PeConfig) -> type[Position]:
    """Return the class that pe.code names.

    Raises:
        ConfigError: the file fails, or this is no such class.
    """
    assert pe.code is not None
    if pe.source is None:
        raise ConfigError("pe.code", pe.code, "needs its file's text: name its --config-dir")
    with explained_by(pe):
        return _executed(pe.code, pe.source)


@functools.cache
def _executed(code: str, source: str) -> type[Position]:
    """Execute a text once, and return its class."""
    file, _, name = code.partition(".")
    # Two texts of one name may be in one process.
    module = ModuleType(f"own_{file}_{source_sha256(source)[:12]}")
    path = f"{file}.py"
    # Tracebacks and torch's compiler then find the text.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    found = getattr(module, name)
    if not (isinstance(found, type) and issubclass(found, Position)):
        raise ConfigError("pe.code", code, "must be a class derived from rope_exp.Position")
    if found.relative not in (True, False, None):
        raise ConfigError("pe.code", code, "states `relative`, which must be True, False or None")
    return found


@contextmanager
def explained_by(pe: PeConfig, *, every: bool = True) -> Iterator[None]:
    """Turn an error of the user's class into one sentence, after the traceback of its own lines.

    Args:
        every: also an error that is raised elsewhere, such as for a wrong shape.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if pe.code is None or out_of_memory(error):
            raise
        path = f"{pe.code.partition('.')[0]}.py"
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path
        ]
        if not (frames or every):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        if frames:
            log("".join(traceback.format_list(frames)).rstrip())
            said = f"{path}, line {frames[-1].lineno}: {said}"
        raise ConfigError("pe.code", pe.code, said) from error


# -- the file --------------------------------------------------------------------------------------


def with_source(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Return the config with the text of the file that pe.code names.

    A run's config.yaml and a record then hold all that they were made by, and the text's SHA-256
    is part of their identity.

    Args:
        folders: in which the file may lie; the first that has it.
    Raises:
        ConfigError: there is no such file, it is not Python, it lacks the class, or it imports
            another package, which a run's folder does not hold.
    """
    code = str(config.pe.code)
    file, name = code.split(".")
    paths = [path for folder in folders if (path := folder / f"{file}.py").is_file()]
    if not paths:
        reason = f"there is no {file}.py in configs/ or a folder of --config-dir"
        raise ConfigError("pe.code", code, reason)
    try:
        source = paths[0].read_text(encoding="utf-8-sig")
        nodes = list(ast.walk(ast.parse(source)))
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        raise ConfigError("pe.code", code, f"{paths[0]}: {first_line(error)}") from None

    if name not in [node.name for node in nodes if isinstance(node, ast.ClassDef)]:
        raise ConfigError("pe.code", code, f"{paths[0]} has no class {name}")
    for node in [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]:
        modules = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            modules = ["." if node.level else str(node.module)]
        for module in modules:
            if module.split(".")[0] not in MAY_IMPORT:
                reason = f"may import Python's library, torch, numpy and rope_exp, not {module}"
                raise ConfigError("pe.code", code, f"{paths[0]}, line {node.lineno}: {reason}")
    return config.replace("pe", source=source, code_sha256=source_sha256(source))
