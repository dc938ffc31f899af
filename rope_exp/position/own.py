"""A position encoding of a user's own file: how it is loaded, and placed in a model."""

import functools
import linecache
import sys
from types import ModuleType

from rope_exp.encoding import Position, Sizes
from rope_exp.errors import ConfigError, explained_by
from rope_exp.sections import PeConfig, source_sha256


def make(pe: PeConfig, sizes: Sizes) -> Position | None:
    """Return the instance of a layer, or of the input; None if it does nothing there.

    Raises:
        ConfigError: the file or the class fails, or there is no such class; its traceback is
            logged.
    """
    assert pe.code is not None
    if pe.source is None:
        raise ConfigError("pe.code", pe.code, "needs its file's text: name its --config-dir")
    with explained_by(pe.code):
        return _executed(pe.code, pe.source).placed(**sizes._asdict())


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
