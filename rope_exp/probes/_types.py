"""Types of plain values in the answers to probes."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field


def _lengths(values: Any) -> set[int]:
    """Return the lengths of all lists of plain values, at any depth."""
    if isinstance(values, dict):
        values = list(values.values())
        return set().union(*map(_lengths, values))
    if not isinstance(values, list | tuple):
        return set()
    return set().union(*map(_lengths, values)) or {len(values)}


def check_one_length(values: Any) -> Any:
    if len(_lengths(values)) > 1:
        raise ValueError("must hold lists of one length")
    return values


# A number that is not finite is null. Squares of larger ones would overflow.
Number = Annotated[float, Field(ge=-1e100, le=1e100)] | None
Numbers = list[Number]
# Marks a type whose lists, at any depth, have one length.
ONE_LENGTH = AfterValidator(check_one_length)
