"""How numbers stand in a probe's answer: plain, and rounded to what they are worth."""

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Probes = dict[str, Any]
Array = NDArray[np.float64]


def rounded(losses: Sequence[SupportsFloat] | Array | Tensor) -> list[float | None]:
    """Return losses with the six decimals that they are worth; None for one that is not finite."""
    numbers = [float(loss) for loss in losses]
    return [round(number, 6) if math.isfinite(number) else None for number in numbers]


def significant(numbers: Tensor) -> list[float | None]:
    """Return numbers of any size, in one row, with six digits; None for one that is not finite."""
    found = numbers.double().tolist()
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in found]
