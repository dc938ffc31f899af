"""Data for the page with what stands in many places kept once: a third of it would be repetition.

A place that shares its value holds {"=": n}, and the value is the n-th of those shared, which may
share in turn. state.js puts them back.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

SHARED = "="
# A shorter value takes hardly more room than what would stand for it.
MIN_CHARS = 12


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"data": ..., "shared": ...}, in which no longer value stands twice.

    Args:
        data: what JSON can hold. A key "=" of its own has no number.
    """
    packing = _Packing(data)
    return {"data": packing.place(data), "shared": packing.shared}


class _Packing:
    """How often each value stands somewhere, and those that are shared so far."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.shared: list[Any] = []
        self._times: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._count(data)

    def _count(self, value: Any) -> None:
        text = _spelled(value)
        self._times[text] += 1
        # What is within a repeated value is repeated with it, and is counted there.
        if self._times[text] == 1:
            for each in _parts(value):
                self._count(each)

    def place(self, value: Any) -> Any:
        """Return what stands in a value's place: itself, or the number of the shared one."""
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
