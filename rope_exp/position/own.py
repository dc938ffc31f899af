"""How a position encoding of a user's own file is loaded, and placed in a model."""

import functools
import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rope_exp.encoding import Position
from rope_exp.errors import ConfigError, first_line, log, out_of_memory
from rope_exp.sections import Architecture, PeConfig, source_sha256

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
