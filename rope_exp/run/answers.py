"""Types of probes.json, which holds the answers of a finished model to each probe.

They check the answers that are read from a run's folder or its record; evaluation/probes.py
explains the numbers. Numbers are bounded, so that no sum or square overflows.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

Number = Annotated[float, Field(ge=-1e100, le=1e100)]
Loss = Number | None  # null where it is not finite
Losses = Annotated[list[Loss], Field(min_length=1)]
Rows = Annotated[list[Losses], Field(min_length=1)]
Natural = Annotated[int, Field(ge=0, le=2**53)]
Naturals = Annotated[list[Natural], Field(min_length=1)]

# The default of a key that may be missing but not null.
_LEFT_OUT: Any = None


class _Types(BaseModel, strict=True, extra="forbid"):
    """Strict types: no text is converted to a number, and unknown keys are refused."""


class _Table(_Types):
    """An answer whose innermost lists are the columns of one table."""

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if len(set(_lengths(vars(self)))) > 1:
            raise ValueError("its lists differ in length")
        return self


def _lengths(values: Any) -> Iterator[int]:
    """Yield the length of each innermost list."""
    if isinstance(values, dict):
        values = list(values.values())
    elif isinstance(values, list) and not isinstance(values[0], list):
        yield len(values)
        return
    for each in values if isinstance(values, list) else ():
        yield from _lengths(each)


class _Windows(_Types):
    loss: Losses


class _Positions(_Types):
    num_windows: Natural
    edges: Naturals
    loss: Losses
    lengths: Naturals
    loss_at_length: Losses

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if len(self.edges) != len(self.loss) + 1 or len(self.lengths) != len(self.loss_at_length):
            raise ValueError("its lists differ in length")
        return self


class _Shift(_Table):
    start: Naturals
    loss: Losses


class _Ablation(_Table):
    without: Annotated[list[Literal["", "q", "k", "v", "o"]], Field(min_length=1)]
    loss: Losses


class _Repeat(_Table):
    reading: Naturals
    loss: Losses


class _Floors(_Types):
    share: Losses


class _Distance(_Table):
    m: Naturals
    attention: Annotated[dict[str, Losses], Field(min_length=1)]
    uniform: Losses
    # Present if q and k both rotate in a layer.
    bound: Losses = _LEFT_OUT
    kappa: dict[str, Rows] = _LEFT_OUT


class _Site(_Table):
    theta0: Losses
    theta: Rows
    median: Loss
    crossings: Natural = _LEFT_OUT


class _Drift(_Types):
    sites: dict[Literal["qk", "vo"], _Site]


class _TokenShift(_Table):
    mean: Losses
    sd: Losses
    min: Losses
    max: Losses


_Sites = dict[Literal["qk", "vo", "qkvo"], Losses]


class _Extension(_Table):
    num_windows: Natural
    lengths: Annotated[list[Annotated[int, Field(ge=1, le=2**53)]], Field(min_length=1)]
    as_trained: Losses
    interpolation: _Sites
    ntk_aware: _Sites
    yarn: _Sites


class _Split(_Table):
    span: Naturals
    count: Naturals
    right: Naturals
    loss: Loss


class _Fit(_Types):
    r2: Loss
    r2_of_dims: Losses
    error_of_queries: Losses


class Answers(_Types):
    """The content of probes.json: one answer for each probe that was run."""

    windows: _Windows = _LEFT_OUT
    positions: _Positions = _LEFT_OUT
    shift: _Shift = _LEFT_OUT
    ablation: _Ablation = _LEFT_OUT
    repeat: _Repeat = _LEFT_OUT
    floors: _Floors = _LEFT_OUT
    distance: _Distance = _LEFT_OUT
    drift: _Drift = _LEFT_OUT
    token_shift: _TokenShift = _LEFT_OUT
    extension: _Extension = _LEFT_OUT
    answers: dict[str, _Split] = _LEFT_OUT
    fit: _Fit = _LEFT_OUT
