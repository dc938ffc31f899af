"""Types of the answers to probes, by which a record is read.

Each file of probes/ has the type of its answer as ANSWER. A type says what a report relies on: the
keys, the kinds of values, and which lists have one length.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rope_exp.identity import must

# null: it was not finite. Reports square numbers, so larger ones than any measured are refused.
Number = Annotated[float, Field(ge=-1e30, le=1e30)] | None
Numbers = Annotated[list[Number], Field(min_length=1)]


def of_one_length(*keys: str) -> AfterValidator:
    """Return a validator: the lists under these keys, or below them, have one length."""

    def holds(answer: Mapping[str, Any]) -> bool:
        lengths: set[int] = set()
        for key in keys:
            lengths |= {len(values) for values in _lists(answer.get(key))}
        return len(lengths) <= 1

    return must(f"must have lists of one length: {', '.join(keys)}", holds)


def _lists(value: Any) -> Iterable[list[Any]]:
    """Yield the innermost lists of a value: itself, or those of a mapping or of a list of lists."""
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list) and value and isinstance(value[0], list):
        inner = value
    else:
        inner = []
        if isinstance(value, list):
            yield value
    for item in inner:
        yield from _lists(item)
