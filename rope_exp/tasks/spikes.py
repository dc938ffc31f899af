"""Spikes: decode the latent that drove a population of units from the times at which they fired.

The task follows POYO (Azabou et al. 2023), with data of a known law: events of several units over
one second, and a smooth latent in two dimensions, to be predicted at 16 times. An event is a token
whose position is a time in seconds, a real number. Each dimension of the latent is a stationary
Gaussian process of mean 0 and variance 1, made of a few Fourier components up to 3 Hz:

    z_d(t) = sum_f a_df cos(2 pi f t) + b_df sin(2 pi f t),   a_df, b_df ~ N(0, v_f),  sum v_f = 1.

Unit u fires as an inhomogeneous Poisson process, independent of the others given z, at the rate

    r_u(z) = peak_u / (1 + exp(-gain_u * (direction_u . z)))   in Hz.

The directions, gains and peaks are the same in all rows. The best possible decoder knows them and
v_f, and returns the mean of z given the events; at the defaults its R^2 is about 0.83.

Shapes: N rows, T slots (events, padding, queries), Q queries, U units, D dimensions of the latent,
F frequencies, E events of one row.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_exp.corpus import Batch, Ints, Reals, TaskSpec
from rope_exp.sections import PERIOD_S, DataConfig
from rope_exp.tasks._rows import Draws

NUM_UNITS = 16
QUERY = NUM_UNITS
PADDING = NUM_UNITS + 1
NUM_QUERIES = 16
NUM_DIMS = 2  # of the prediction at a query
# The middle of each sixteenth of the second.
QUERY_S = (np.arange(NUM_QUERIES) + 0.5) / NUM_QUERIES
FREQUENCY_F = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])  # Hz; the latent repeats after two seconds
VARIANCE_F = (1 / FREQUENCY_F) / (1 / FREQUENCY_F).sum()

GAPS_AT_ONCE = 64

SPEC = TaskSpec(
    tokens=[*(f"unit{number:02d}" for number in range(NUM_UNITS)), "query", "pad"],
    least_seq_len=NUM_QUERIES + 1,
    unit="mean squared error",
    objective="regression",
    probe="fit",
    key="period",
    num_answers=NUM_QUERIES,
    num_outputs=NUM_DIMS,
)

_DRAWS = Draws(0, "spikes units", 0)
# One direction in each of U sectors, so that the units cover all directions.
_ANGLE_U = 2 * np.pi * (np.arange(NUM_UNITS) + _DRAWS.uniforms(NUM_UNITS)) / NUM_UNITS
DIRECTION_UD = np.stack([np.cos(_ANGLE_U), np.sin(_ANGLE_U)], axis=1)
GAIN_U = 1 + 2 * _DRAWS.uniforms(NUM_UNITS)
PEAK_U = 15 + 10 * _DRAWS.uniforms(NUM_UNITS)  # Hz


@dataclass(frozen=True)
class SpikeRows:
    """Rows as an encoder reads them: events by time, then padding, then the queries.

    A position is a time times 2 pi / period_s. So the fastest pair of features, which rotates by
    1 radian per position, rotates once per period.
    """

    ids_NT: Ints
    times_NT: Reals
    latent_NQD: NDArray[np.float32]
    period_s: float

    @property
    def batch(self) -> Batch:
        """The batch that predicts the latent at the queries from all events."""
        num_rows, num_slots = self.ids_NT.shape
        place_Q = np.arange(num_slots - NUM_QUERIES, num_slots)
        # The last bits of times may differ between machines, so microseconds are hashed.
        hashed_time_NT = np.round(self.times_NT * 10**6).astype(np.int64)
        return Batch(
            ids_BT=self.ids_NT,
            target_BP=self.latent_NQD,
            hashed_BS=np.concatenate([self.ids_NT, hashed_time_NT], axis=1),
            place_BP=np.tile(place_Q, (num_rows, 1)),
            position_BT=self.times_NT * (2 * np.pi / self.period_s),
            # No other token attends to padding.
            document_BT=(self.ids_NT == PADDING).astype(np.int64),
        )


def rows(
    data: DataConfig, seed: int, split: str, indices: Iterable[int], seq_len: int
) -> SpikeRows:
    """Return rows of the first events, as many as fit before the queries, and their latent.

    By thinning (Lewis and Shedler 1979): candidates of all units arrive at the sum of the peaks. A
    candidate belongs to unit u with probability peak_u over that sum, and is kept with probability
    r_u(z(t)) / peak_u.
    """
    ids = []
    times = []
    latents = []
    until_U = np.cumsum(PEAK_U)
    total = until_U[-1]
    for index in indices:
        draws = Draws(seed, f"spikes {split}", index)
        amplitude_2DF = draw_amplitudes(draws)
        latents.append(latent(amplitude_2DF, QUERY_S))

        time_E = np.zeros(1)
        while time_E[-1] < 1:
            gap_E = draws.exponentials(GAPS_AT_ONCE) / total
            time_E = np.concatenate([time_E, time_E[-1] + np.cumsum(gap_E)])
        time_E = time_E[1:][time_E[1:] < 1]
        unit_E = np.searchsorted(until_U, draws.uniforms(len(time_E)) * total, side="right")

        drive_EU = latent(amplitude_2DF, time_E) @ DIRECTION_UD.T * GAIN_U
        rate_EU = PEAK_U / (1 + np.exp(-drive_EU))
        rate_E = rate_EU[np.arange(len(time_E)), unit_E]
        is_kept_E = draws.uniforms(len(time_E)) * PEAK_U[unit_E] < rate_E

        kept = np.flatnonzero(is_kept_E)[: seq_len - NUM_QUERIES]
        num_pads = seq_len - NUM_QUERIES - len(kept)
        ids.append([*unit_E[kept], *[PADDING] * num_pads, *[QUERY] * NUM_QUERIES])
        times.append([*time_E[kept], *[0.0] * num_pads, *QUERY_S])
    return SpikeRows(
        ids_NT=np.array(ids, dtype=np.int64),
        times_NT=np.array(times),
        latent_NQD=np.stack(latents).astype(np.float32),
        period_s=data.period or PERIOD_S,
    )


def draw_amplitudes(draws: Draws) -> Reals:
    """Draw a_df and b_df, of shape [2, D, F]."""
    normals = draws.normals(2 * NUM_DIMS * len(FREQUENCY_F))
    return normals.reshape(2, NUM_DIMS, -1) * np.sqrt(VARIANCE_F)


def latent(amplitude_2DF: Reals, time_E: Reals) -> Reals:
    """Return z_ED at times in seconds."""
    angle_EF = 2 * np.pi * time_E[:, None] * FREQUENCY_F
    a_DF, b_DF = amplitude_2DF
    return np.cos(angle_EF) @ a_DF.T + np.sin(angle_EF) @ b_DF.T
