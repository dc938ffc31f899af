"""Types of plain values in the answers to probes."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field


def check_one_length(values: Any) -> Any:
    """Refuse plain values whose innermost lists differ in length."""
    lengths = set()
    unread = [values]
    while unread:
        value = unread.pop()
        if isinstance(value, dict):
            unread += value.values()
        elif isinstance(value, list | tuple):
            inner = [each for each in value if isinstance(each, list)]
            unread += inner
            lengths |= set() if inner else {len(value)}
    if len(lengths) > 1:
        raise ValueError("must hold lists of one length")
    return values


# A number that is not finite is null. Squares of larger ones would overflow.
Number = Annotated[float, Field(ge=-1e100, le=1e100)] | None
Numbers = list[Number]
# Marks a type whose lists, at any depth, have one length.
ONE_LENGTH = AfterValidator(check_one_length)
