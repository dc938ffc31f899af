"""Spikes: decode the latent that drove a population of units from the times at which they fired.

The task follows POYO (Azabou et al. 2023), with data of a known law: events of several units over
one second, and a smooth latent in two dimensions, to be predicted at 16 times. An event is a token
whose position is a time in seconds, a real number.

The law. Each dimension of the latent is a stationary Gaussian process of mean 0 and variance 1,
made of a few Fourier components below 3 Hz:

    z_d(t) = sum_f a_df cos(2 pi f t) + b_df sin(2 pi f t),   a_df, b_df ~ N(0, v_f),  sum v_f = 1.

Unit u fires as an inhomogeneous Poisson process, independent of the others given z, at the rate

    r_u(z) = peak_u / (1 + exp(-gain_u * (direction_u . z)))   in Hz.

The directions, gains and peaks depend only on the population's number, so rows of all seeds, in
training and in the test, have the same units. The best possible decoder knows them and v_f, and
returns the mean of z given the events. It has errors, because a unit fires only ten times a second:
at the defaults its R^2 is about 0.83. Ridge regression on binned counts, trained on 2,000 rows,
reaches about 0.75.

Shapes: N rows, T slots (events, padding, queries), Q queries, U units, D dimensions of the latent,
F frequencies, E events of one row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rope_exp.rows import TEST, TRAIN, Draws
from rope_exp.sections import NUM_DIMS, NUM_QUERIES

# The middle of each sixteenth of the second.
QUERY_S = (np.arange(NUM_QUERIES) + 0.5) / NUM_QUERIES

FREQUENCY_F = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])  # Hz; the latent repeats after two seconds
VARIANCE_F = (1 / FREQUENCY_F) / (1 / FREQUENCY_F).sum()

LEAST_PEAK, MOST_PEAK = 15.0, 25.0  # Hz
LEAST_GAIN, MOST_GAIN = 1.0, 3.0

GAPS_AT_ONCE = 64


@dataclass(frozen=True)
class Units:
    """The preferred directions, gains and peaks (Hz) that determine a population's rates."""

    direction_UD: NDArray[np.float64]
    gain_U: NDArray[np.float64]
    peak_U: NDArray[np.float64]

    def rates(self, latent_ED: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rate_EU in Hz, for each value of the latent."""
        drive_EU = latent_ED @ self.direction_UD.T * self.gain_U
        rate_EU: NDArray[np.float64] = self.peak_U / (1 + np.exp(-drive_EU))
        return rate_EU


@dataclass(frozen=True)
class SpikeRows:
    """Rows as an encoder reads them: events by time, then padding, then the queries.

    Attributes:
        ids_NT: the unit of an event, `query_id` or `pad_id`.
        times_NT: in seconds, within [0, 1); 0 where there is padding.
        is_pad_NT: true for slots of padding.
        latent_NQD: the targets at the last Q slots.
    """

    ids_NT: NDArray[np.int64]
    times_NT: NDArray[np.float64]
    is_pad_NT: NDArray[np.bool_]
    latent_NQD: NDArray[np.float32]


@dataclass(frozen=True)
class Spikes:
    """Rows of events, and the latent that drove them.

    Attributes:
        seed: of the rows.
        population: its number, which determines the units.
        num_units: U.
        num_slots: for events; a row keeps this many, the first ones. 16 units have 145 to 180 on
            average, depending on the population, with a standard deviation of 13: almost none are
            lost.
    """

    version: ClassVar[int] = 1
    splits: ClassVar[tuple[str, ...]] = (TRAIN, TEST)

    seed: int
    num_units: int = 16
    num_slots: int = 240
    population: int = 0

    @property
    def query_id(self) -> int:
        """The id of a query; lower ids are units."""
        return self.num_units

    @property
    def pad_id(self) -> int:
        """The id of padding."""
        return self.num_units + 1

    @cached_property
    def units(self) -> Units:
        """The units of the population."""
        draws = Draws(self.population, "spikes units", 0)
        # One direction in each of U sectors, so that every population covers all directions.
        sector_U = np.arange(self.num_units) + draws.uniforms(self.num_units)
        angle_U = 2 * np.pi * sector_U / self.num_units
        gain_U = LEAST_GAIN + (MOST_GAIN - LEAST_GAIN) * draws.uniforms(self.num_units)
        peak_U = LEAST_PEAK + (MOST_PEAK - LEAST_PEAK) * draws.uniforms(self.num_units)
        return Units(np.stack([np.cos(angle_U), np.sin(angle_U)], axis=1), gain_U, peak_U)

    def rows(self, split: str, indices: Iterable[int]) -> SpikeRows:
        """Return the rows of "train" or "test" with these indices, counted from 0."""
        assert split in self.splits, split
        num_slots = self.num_slots + NUM_QUERIES

        rows = []
        for index in indices:
            draws = Draws(self.seed, f"spikes {split}", index)
            amplitude_2DF = draw_amplitudes(draws)
            unit_E, time_E = self._events(draws, amplitude_2DF)

            count = len(unit_E)
            ids_T = np.full(num_slots, self.pad_id, dtype=np.int64)
            ids_T[:count] = unit_E
            ids_T[-NUM_QUERIES:] = self.query_id
            times_T = np.zeros(num_slots)
            times_T[:count] = time_E
            times_T[-NUM_QUERIES:] = QUERY_S
            rows.append((ids_T, times_T, latent(amplitude_2DF, QUERY_S)))

        ids, times, latents = zip(*rows, strict=True)
        ids_NT = np.stack(ids)
        return SpikeRows(
            ids_NT=ids_NT,
            times_NT=np.stack(times),
            is_pad_NT=ids_NT == self.pad_id,
            latent_NQD=np.stack(latents).astype(np.float32),
        )

    def _events(
        self, draws: Draws, amplitude_2DF: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return unit_E and time_E of at most `num_slots` events, ordered by time.

        By thinning (Lewis and Shedler 1979): candidates of all units arrive at the sum of the
        peaks. A candidate belongs to unit u with probability peak_u over that sum, and is kept with
        probability r_u(z(t)) / peak_u.
        """
        until_U = np.cumsum(self.units.peak_U)
        total = until_U[-1]
        time_E = _arrivals(draws, total)
        unit_E = np.searchsorted(until_U, draws.uniforms(len(time_E)) * total, side="right")

        rate_EU = self.units.rates(latent(amplitude_2DF, time_E))
        rate_E = rate_EU[np.arange(len(time_E)), unit_E]
        stays_E = draws.uniforms(len(time_E)) * self.units.peak_U[unit_E] < rate_E
        return unit_E[stays_E][: self.num_slots], time_E[stays_E][: self.num_slots]


def draw_amplitudes(draws: Draws) -> NDArray[np.float64]:
    """Draw a_df and b_df, of shape [2, D, F]."""
    normals = draws.normals(2 * NUM_DIMS * len(FREQUENCY_F))
    amplitude_2DF: NDArray[np.float64] = normals.reshape(2, NUM_DIMS, -1) * np.sqrt(VARIANCE_F)
    return amplitude_2DF


def latent(amplitude_2DF: NDArray[np.float64], time_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return z_ED at times in seconds."""
    angle_EF = 2 * np.pi * time_E[:, None] * FREQUENCY_F
    a_DF, b_DF = amplitude_2DF
    latent_ED: NDArray[np.float64] = np.cos(angle_EF) @ a_DF.T + np.sin(angle_EF) @ b_DF.T
    return latent_ED


def _arrivals(draws: Draws, rate: float) -> NDArray[np.float64]:
    """Draw the times of a Poisson process of `rate` Hz within the second."""
    time_E = np.zeros(1)
    while time_E[-1] < 1:
        gap_E = draws.exponentials(GAPS_AT_ONCE) / rate
        time_E = np.concatenate([time_E, time_E[-1] + np.cumsum(gap_E)])
    return time_E[1:][time_E[1:] < 1]
