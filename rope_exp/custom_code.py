"""A position encoding of a user's own file: how it is loaded, and placed in a model."""

import ast
import functools
import linecache
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rope_exp import rope
from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError, first_line, log
from rope_exp.files import text_sha256
from rope_exp.position import _encoding
from rope_exp.position._encoding import Position, Sizes
from rope_exp.sections import PeConfig

# Files on record import these names, and a file's text is part of a run's identity.
sys.modules["rope_exp.model.position"] = _encoding
sys.modules["rope_exp.encoding"] = _encoding
sys.modules["rope_exp.model.rope"] = rope

# Packages that a user's file may import.
MAY_IMPORT = {*sys.stdlib_module_names, "torch", "numpy", "rope_exp"}


def make(pe: PeConfig, sizes: Sizes) -> Position | None:
    """Return the instance of a layer, or of the input; None if it does nothing there.

    The file's text is executed.

    Raises:
        ConfigError: the text is missing, fails, or has no such class.
    """
    assert pe.code is not None
    if pe.source is None:
        raise ConfigError("pe.code", pe.code, "needs its file's text: name its --config-dir")
    with refuse_code_errors(pe.code):
        return _executed(pe.code, pe.source).placed(sizes)


@contextmanager
def refuse_code_errors(code: str, *, every: bool = True) -> Iterator[None]:
    """Turn an error of a user's class into one sentence, after its own traceback.

    A lack of memory passes, as for any variant.

    Args:
        code: pe.code, FILE.CLASS.
        every: also turn an error that is raised elsewhere, such as for a wrong shape.
    Raises:
        ConfigError: the block raised an error.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        path = f"{code.partition('.')[0]}.py"
        stack = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in stack if frame.filename == path]
        # torch's error for a lack of memory on a CPU has no type of its own.
        pattern = "allocate memory|out of memory|enough memory|bad_alloc|ALLOC_FAILED"
        lacks_memory = isinstance(error, MemoryError) or re.search(pattern, str(error))
        if lacks_memory or not (frames or every):
            raise
        message = f"{type(error).__name__}: {first_line(error)}"
        if frames:
            log("".join(traceback.format_list(frames)).rstrip())
            message = f"{path}, line {frames[-1].lineno}: {message}"
        raise ConfigError("pe.code", code, message) from error


@functools.cache
def _executed(code: str, source: str) -> type[Position]:
    """Execute a text once, and return its class."""
    file, _, name = code.partition(".")
    # Two files of one name may be in one process, such as a run's and its origin's: each text is a
    # module of its own.
    module = ModuleType(f"custom_{file}_{text_sha256(source)[:12]}")
    # Tracebacks and torch's compiler find the text by this path. Users know the path, so it has no
    # hash: of two texts of one name, they show the lines of the one that was executed last.
    path = f"{file}.py"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    position = getattr(module, name)
    if not (isinstance(position, type) and issubclass(position, Position)):
        raise ConfigError("pe.code", code, "must be a class derived from rope_exp.Position")
    methods = ("embed", "turn", "of_tokens", "scores")
    if not position.overrides(*methods):
        raise ConfigError("pe.code", code, f"must define one of {', '.join(methods)}")
    return position


def with_source(config: RunConfig, folders: Sequence[Path]) -> RunConfig:
    """Return the config with the text of the file that pe.code names, from the first folder.

    A record then holds all that made it; a file that imports other files is refused.

    Raises:
        ConfigError: there is no such file or class, it cannot be read, or it imports other files.
    """
    code = str(config.pe.code)
    file, name = code.split(".")
    candidates = [folder / f"{file}.py" for folder in folders]
    paths = [path for path in candidates if path.is_file()]
    if not paths:
        reason = f"there is no {file}.py in configs/ or a folder of --config-dir"
        raise ConfigError("pe.code", code, reason)
    try:
        source = paths[0].read_text(encoding="utf-8-sig")
        nodes = list(ast.walk(ast.parse(source)))
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        raise ConfigError("pe.code", code, f"{paths[0]}: {first_line(error)}") from None

    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in nodes):
        raise ConfigError("pe.code", code, f"{paths[0]} has no class {name}")
    modules = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            modules.append("." if node.level else str(node.module))
    for module in modules:
        if module.split(".")[0] not in MAY_IMPORT:
            reason = f"may import Python's library, torch, numpy and rope_exp, not {module}"
            raise ConfigError("pe.code", code, f"{paths[0]}: {reason}")
    return config.replace("pe", source=source, code_sha256=text_sha256(source))
