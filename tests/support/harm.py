"""Damage to the bytes of a file, drawn by hypothesis, or to a value of its JSON."""

import copy
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Where, how many bytes are removed there, and the bytes that are put in their place.
Harm = tuple[float, int, bytes]
harms: st.SearchStrategy[Harm] = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0, 1, 1, 8, 30, 10**6]),
    st.binary(max_size=8),
)


def efforts(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test on few examples, and on many in `make torture`."""
    slow = pytest.param(many, id="many", marks=pytest.mark.torture)
    return pytest.mark.parametrize("effort", [pytest.param(few, id="few"), slow])


def harmed(content: bytes, harm: Harm) -> bytes:
    """Return a content that differs from the one given, unless it is empty."""
    share, removed, inserted = harm
    place = int(share * len(content))
    found = content[:place] + inserted + content[place + removed :]
    return found if found != content else content[:place] + b"\xff" + content[place + 1 :]


def try_harms(check: Callable[..., None], effort: int, *drawn: st.SearchStrategy[Any]) -> None:
    """Call `check(harm, *drawn)` for `effort` examples, the same in each run of the tests."""
    own = settings(max_examples=effort, derandomize=True, suppress_health_check=list(HealthCheck))
    own(given(harms, *drawn)(check))()


# -- values of JSON --------------------------------------------------------------------------------

GONE = object()
HARMS: tuple[Any, ...] = (None, "x", [], -1, 3.5, float("nan"), 1e308, 10**30, True, GONE)
Place = tuple[str | int, ...]


def places(values: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of each value; the last item of a list represents all of it."""
    if at:
        yield at
    if isinstance(values, dict):
        for key, below in values.items():
            yield from places(below, (*at, key))
    elif isinstance(values, list) and values:
        yield from places(values[-1], (*at, len(values) - 1))


def with_harm(values: Any, place: Place, harm: Any) -> Any:
    """Return a copy of some values with one replaced, or removed if `harm` is GONE."""
    values = copy.deepcopy(values)
    *above, last = place
    inner: Any = functools.reduce(operator.getitem, above, values)
    inner[last] = harm
    if harm is GONE:
        del inner[last]
    return values
