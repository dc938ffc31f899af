"""Types of plain values in the answers to probes."""

from typing import Annotated

from pydantic import Field

# A number that is not finite is null. Squares of larger ones would overflow.
Number = Annotated[float, Field(ge=-1e100, le=1e100)] | None
Numbers = list[Number]
