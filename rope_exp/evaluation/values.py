"""Rounding of a probe's numbers to plain values with their useful digits."""

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Probes = dict[str, Any]
Array = NDArray[np.float64]


def rounded(losses: Sequence[SupportsFloat] | Array | Tensor) -> list[float | None]:
    """Return losses rounded to six useful decimals; None for one that is not finite."""
    numbers = [float(loss) for loss in losses]
    return [round(number, 6) if math.isfinite(number) else None for number in numbers]


def significant(numbers: Tensor) -> list[float | None]:
    """Return a 1-D tensor's numbers with six significant digits; None if not finite."""
    found = numbers.double().tolist()
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in found]
