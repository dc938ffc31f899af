"""Fits of a variant's difference as a line in the logarithms of size, tokens and length.

Each variant's differences to the reference within a seed are fitted by

    delta = a + b log2(parameters) + c log2(tokens) + d log2(length),

by ordinary least squares over the cells that were run, one row per run. An axis that did not vary
is left out, and the fit says nothing about it, nor about places outside the tested range. Plain
float64, nats. Rows are treated as independent, which runs of one seed at several budgets are not
quite.

One variant passes another at the place where a line in tokens alone, at one size and length, is 0.
A line is rejected if places lie further from it than seeds of one place lie from one another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from rope_exp.evidence.contrasts import Array
from rope_exp.evidence.runs import ReportError, Run

AXES = ("parameters", "tokens", "length")
LEVEL = 0.95
# With fewer steps of warmup, rows suffer unequally, more so in shorter runs (docs/protocol.md).
LEAST_WARMUP = 100


@dataclass(frozen=True)
class Fit:
    """A variant's difference as a line in logarithms.

    Attributes:
        axes: those that varied, in the order of `slopes`.
        slopes: nats per doubling.
        deviation: the standard deviation of the residual.
        df: its degrees of freedom.
        count: the number of differences.
        ranges: the least and the greatest value that was run, by axis.
        p_straight: of the places' means, if the line is right; None if the runs cannot test it.
    """

    axes: tuple[str, ...]
    slopes: tuple[float, ...]
    deviation: float
    df: int
    count: int
    ranges: Mapping[str, tuple[float, float]]
    p_straight: float | None
    _center: Array
    _mean: float
    _inverse: Array

    @property
    def is_bent(self) -> bool:
        """True if the runs contradict a line, so that nothing may be read off it."""
        return self.p_straight is not None and self.p_straight < 1 - LEVEL

    @property
    def slope_errors(self) -> tuple[float, ...]:
        """The standard errors of the slopes."""
        return tuple(self.deviation * math.sqrt(value) for value in np.diag(self._inverse))

    @property
    def quantile(self) -> float:
        """The number of standard errors on each side of an interval."""
        return float(stats.t.ppf((1 + LEVEL) / 2, self.df))

    def line(self, at: Mapping[str, float]) -> float:
        """Return the fitted difference at a place."""
        return self._mean + float(self._from_center(at) @ np.array(self.slopes))

    def crossing(self) -> tuple[float, float, float] | None:
        """Return the place where a line of one axis is 0, and the ends of its 95 % interval.

        The interval is the places z at which the band of the line holds 0 (Fieller 1954): with m
        the mean, s the slope, e its error, q the quantile and sigma the standard deviation of n
        differences, (m + s z)^2 <= q^2 (sigma^2 / n + e^2 z^2).

        Returns:
            In the axis' own unit; None if the slope cannot be distinguished from 0, so that the
            interval has no end.
        """
        [slope] = self.slopes
        [error] = self.slope_errors
        of_slope = slope**2 - (self.quantile * error) ** 2
        if of_slope <= 0:
            return None
        of_mean = self._mean**2 - (self.quantile * self.deviation) ** 2 / self.count
        middle = -self._mean * slope / of_slope
        half = math.sqrt(max(middle**2 - of_mean / of_slope, 0.0))
        center = float(self._center[0])
        found = np.array([-self._mean / slope, middle - half, middle + half])
        # If the slope is barely distinguished from 0, an end can exceed a float: it is infinite.
        with np.errstate(over="ignore"):
            at, low, high = np.exp2(center + found)
        return float(at), float(low), float(high)

    def _from_center(self, at: Mapping[str, float]) -> Array:
        return np.array([np.log2(at[axis]) for axis in self.axes]) - self._center


def differences(runs: Sequence[Run], reference: str) -> pd.DataFrame:
    """Return a row for each run with the reference in its block: variant, seed, axes, difference.

    A block is the runs of one seed at one size, budget and length. The reference's differences, 0,
    are included.

    Raises:
        ReportError: two runs have one variant and block.
    """
    rows = []
    for run in runs:
        if run.loss is not None:
            rows.append(
                {
                    "where": run.where,
                    "pe": run.config.pe.label,
                    "seed": run.config.seed,
                    "parameters": run.result["params"],
                    "tokens": run.config.train.num_tokens,
                    "length": run.config.train.seq_len,
                    "loss": run.loss,
                }
            )
    columns = ["where", "pe", "seed", *AXES, "loss"]
    table = pd.DataFrame(rows, columns=columns)
    block = ["seed", *AXES]
    zero = table[table["pe"] == reference].set_index(block)["loss"].rename("reference")
    if len(twice := table[table.duplicated(["pe", *block], keep=False)]):
        raise ReportError(
            f"{' and '.join(twice['where'])} have the same variant, seed, size, budget and "
            "length; a fit takes only one such run"
        )
    joined = table.join(zero, on=block, how="inner")
    joined["delta"] = joined["loss"] - joined["reference"]
    return joined.drop(columns=["loss", "reference"]).reset_index(drop=True)


def fit(table: pd.DataFrame) -> Fit | None:
    """Fit one variant's differences; None if no axis varies or the runs do not determine a fit."""
    axes = tuple(axis for axis in AXES if table[axis].nunique() > 1)
    x_NA = np.log2(table[list(axes)].to_numpy(dtype=float))
    y_N = table["delta"].to_numpy(dtype=float)
    df = len(y_N) - len(axes) - 1
    if not axes or df < 1:
        return None

    center_A = x_NA.mean(axis=0)
    centered_NA = x_NA - center_A
    slopes_A, _, rank, _ = np.linalg.lstsq(centered_NA, y_N - y_N.mean(), rcond=None)
    if rank < len(axes):
        return None
    residual_N = y_N - y_N.mean() - centered_NA @ slopes_A
    squares = float(np.sum(residual_N**2))
    return Fit(
        axes=axes,
        slopes=tuple(map(float, slopes_A)),
        deviation=math.sqrt(squares / df),
        df=df,
        count=len(y_N),
        ranges={axis: (float(table[axis].min()), float(table[axis].max())) for axis in AXES},
        p_straight=_p_straight(table, axes, squares, df),
        _center=center_A,
        _mean=float(y_N.mean()),
        _inverse=np.linalg.inv(centered_NA.T @ centered_NA),
    )


def _p_straight(table: pd.DataFrame, axes: Sequence[str], squares: float, df: int) -> float | None:
    """Test a line against the spread of seeds within a place (Fisher's F test of lack of fit).

    Args:
        squares: the residual's sum of squares, with `df` degrees of freedom.
    Returns:
        p of the places' distances from the line; None if no place has two seeds that differ, or
        there are no more places than the line passes through anyway.
    """
    places = table.groupby(list(axes))["delta"]
    within = float(np.sum((table["delta"] - places.transform("mean")) ** 2))
    df_within = len(table) - places.ngroups
    df_beside = df - df_within
    # With equal differences, the sum is rounding error.
    if df_within < 1 or df_beside < 1 or within < 1e-18:
        return None
    beside = max(squares - within, 0.0)
    return float(stats.f.sf((beside / df_beside) / (within / df_within), df_beside, df_within))


def fits(runs: Sequence[Run], reference: str) -> dict[str, Fit]:
    """Return the variants' fits by label, without variants that cannot be fitted."""
    table = differences(runs, reference)
    found = {}
    for label, of_variant in table[table["pe"] != reference].groupby("pe", sort=True):
        fitted = fit(of_variant)
        if fitted is not None:
            found[str(label)] = fitted
    return found
