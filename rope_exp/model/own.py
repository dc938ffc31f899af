"""Position encodings of a user's own file: the class to derive from, and how it is loaded.

A `Position` acts in each layer (on q, k, v, scores and output) or at the input, or both; it
overrides the methods for the places where it acts. See docs/own-position.md.

Shapes: B batch, T position, E keys (the last T are the queries' own), H query heads, K features.
"""

import functools
import linecache
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple, Self

from torch import Tensor, nn

from rope_exp.config.architecture import Architecture
from rope_exp.config.variants import PeConfig, source_sha256
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError, first_line

# In the name of each parameter of a user's class.
OWN = ".own."


class Sizes(NamedTuple):
    """The sizes of a decoder, and the place of one instance in it.

    Attributes:
        num_positions: one more than the last position of training.
        causal: whether no token attends to a later one.
        layer: from 0; None: the instance at the input.
    """

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    num_positions: int
    causal: bool
    layer: int | None

    @classmethod
    def of(cls, architecture: Architecture, layer: int | None = None) -> Self:
        """Return the sizes of a layer's instance, or of the input's."""
        model = architecture.model
        return cls(
            model.hidden_size,
            model.num_attention_heads,
            model.num_key_value_heads,
            model.features_per_head,
            model.num_hidden_layers,
            architecture.num_positions,
            architecture.causal,
            layer,
        )


class Position(nn.Module):
    """A position encoding. Override what it does; what is not overridden does nothing.

    Parameters are those of any torch module. Matrices are drawn from N(0, 0.02^2) by their names;
    others keep the values that `__init__` gives them, which must not be random. A model may be
    built on torch's meta device, where tensors have no values.

    Attributes:
        relative: whether the logits stay the same when all positions grow by the same number. It
            is measured before training. None: no law is stated, and none is measured.
    """

    relative: bool | None = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        """Return the embeddings with something added; positions are [T] or [B, T]."""
        return x_BTD

    def turn(self, site: str, x_BTHK: Tensor, position_T: Tensor) -> Tensor:
        """Return queries, keys or values before the scores, or the output after the sum.

        Args:
            site: q, k, v or o. The output is that of the query's position.
        """
        return x_BTHK

    def of_tokens(self, x_BTD: Tensor, position_T: Tensor) -> dict[str, Tensor]:
        """Return what `scores` needs of each token, [B, T, ...] by name; it is cached.

        Args:
            x_BTD: the normed input of the layer's attention.
        """
        return {}

    def scores(self, kept: Mapping[str, Tensor], num_queries: int) -> Tensor | None:
        """Return what is added to the scores, [H, T, E] or [B, H, T, E]; None: nothing.

        Args:
            kept: of E tokens, the last `num_queries` of which are the queries: what `of_tokens`
                returned, and `position_BE`.
        """
        return None

    @classmethod
    def overrides(cls, *methods: str) -> bool:
        """Return whether the class has a method of these of its own."""
        return any(getattr(cls, name) is not getattr(Position, name) for name in methods)


def make_own(architecture: Architecture, layer: int | None) -> Position | None:
    """Return the instance of a layer, or of the input (None); None if it does nothing there.

    Raises:
        ConfigError: the file or the class fails; its traceback is logged.
    """
    pe = architecture.pe
    if pe.code is None:
        return None
    own = class_of(pe)
    acts = ("embed",) if layer is None else ("turn", "of_tokens", "scores")
    if not own.overrides(*acts):
        return None
    with explained_by(pe):
        return own(Sizes.of(architecture, layer))


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
        if pe.code is None:
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
