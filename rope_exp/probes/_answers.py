"""The types of the answers to probes in probes.json."""

import re
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from rope_exp.identity import Count, Natural, rule


def _lengths(values: Any) -> set[int]:
    """Return the lengths of all lists of plain values, at any depth."""
    if isinstance(values, dict):
        values = list(values.values())
        return set().union(*map(_lengths, values))
    if not isinstance(values, list | tuple):
        return set()
    return set().union(*map(_lengths, values)) or {len(values)}


def _check_one_length(values: Any) -> Any:
    if len(_lengths(values)) > 1:
        raise ValueError("must hold lists of one length")
    return values


def _check_positions(values: Any) -> Any:
    # A bin has two edges.
    _check_one_length([values["edges"][1:], values["loss"]])
    _check_one_length([values["lengths"], values["loss_at_length"]])
    return values


_ONE_LENGTH = AfterValidator(_check_one_length)
_Digits = Annotated[
    str, rule("must be a whole number", re.compile("[0-9]{1,6}", re.ASCII).fullmatch)
]
# A number that is not finite is null. Squares of larger ones would overflow.
_Number = Annotated[float, Field(ge=-1e100, le=1e100)] | None
_Numbers = list[_Number]


class _Windows(TypedDict):
    loss: _Numbers


class _Positions(TypedDict):
    num_windows: Count
    edges: list[Natural]
    loss: _Numbers
    lengths: list[Count]
    loss_at_length: _Numbers


class _Shift(TypedDict):
    start: list[Natural]
    loss: _Numbers


class _Ablation(TypedDict):
    without: list[Literal["", "q", "k", "v", "o"]]
    loss: _Numbers


class _Repeat(TypedDict):
    reading: list[Count]
    loss: tuple[_Number, _Number]


class _Floors(TypedDict):
    share: _Numbers


class _Distance(TypedDict):
    m: list[Natural]
    attention: dict[_Digits, _Numbers]
    uniform: _Numbers
    bound: NotRequired[_Numbers]
    kappa: NotRequired[dict[_Digits, list[_Numbers]]]


class _Drifted(TypedDict):
    theta0: _Numbers
    theta: list[_Numbers]
    median: _Number
    crossings: NotRequired[Natural]


class _Drift(TypedDict):
    sites: dict[Literal["qk", "vo"], Annotated[_Drifted, _ONE_LENGTH]]


class _TokenShift(TypedDict):
    mean: _Numbers
    sd: _Numbers
    min: _Numbers
    max: _Numbers


class _Extension(TypedDict):
    num_windows: Count
    lengths: list[Count]
    as_trained: _Numbers
    interpolation: dict[str, _Numbers]
    ntk_aware: dict[str, _Numbers]
    yarn: dict[str, _Numbers]


class _Answers(TypedDict):
    span: list[Natural]
    count: list[Count]
    right: list[Natural]
    loss: _Number


class _Fit(TypedDict):
    r2: _Number
    r2_of_dims: _Numbers
    error_of_queries: _Numbers


class Answers(TypedDict, total=False):
    """The content of probes.json: the answer of each probe that was asked."""

    windows: _Windows
    positions: Annotated[_Positions, AfterValidator(_check_positions)]
    shift: Annotated[_Shift, _ONE_LENGTH]
    ablation: Annotated[_Ablation, _ONE_LENGTH]
    repeat: Annotated[_Repeat, _ONE_LENGTH]
    floors: _Floors
    distance: Annotated[_Distance, _ONE_LENGTH]
    drift: _Drift
    token_shift: Annotated[_TokenShift, _ONE_LENGTH]
    extension: Annotated[_Extension, _ONE_LENGTH]
    answers: dict[str, Annotated[_Answers, _ONE_LENGTH]]
    fit: _Fit
