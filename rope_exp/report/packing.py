"""Compression of the page's data: repeated values, a third of the data, are stored once.

A repeated value is replaced by {"=": n}, where n is its index in the list of shared values. Shared
values may contain such references in turn. state.js restores them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

SHARED = "="
# A shorter value is hardly longer than its reference.
MIN_CHARS = 12


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"data": ..., "shared": ...}, without repeated values of `MIN_CHARS` or more.

    Args:
        data: data that JSON can represent. A key "=" in it must not have an integer value.
    """
    packing = _Packing(data)
    return {"data": packing.place(data), "shared": packing.shared}


class _Packing:
    """The number of occurrences of each value, and the values shared so far."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.shared: list[Any] = []
        self._times: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._count(data)

    def _count(self, value: Any) -> None:
        text = _spelled(value)
        self._times[text] += 1
        # The parts of a repeated value were counted at its first occurrence.
        if self._times[text] == 1:
            for each in _parts(value):
                self._count(each)

    def place(self, value: Any) -> Any:
        """Return the replacement of a value: the value itself, or a reference to a shared one."""
        text = _spelled(value)
        if len(text) < MIN_CHARS or self._times[text] == 1:
            return self._inside(value)

        if text not in self._numbers:
            inside = self._inside(value)
            self._numbers[text] = len(self.shared)
            self.shared.append(inside)
        return {SHARED: self._numbers[text]}

    def _inside(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            assert not isinstance(value.get(SHARED), int), "the number of nothing shared"
            return {key: self.place(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.place(each) for each in value]
        return value


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else ()


def _spelled(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
