"""Tests of spikes: events follow the law of their latent, and decoders explain known shares."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from rope_exp.sections import DataConfig
from rope_exp.tasks import spikes as task
from rope_exp.tasks._rows import Draws

NUM_BINS = 16
NUM_ROWS = 1000

Amplitudes = NDArray[np.float64]


def rows_of(split: str, count: int, seq_len: int = 256) -> task.SpikeRows:
    return task.rows(DataConfig(kind="spikes"), 0, split, range(count), seq_len)


def amplitudes(count: int) -> Amplitudes:
    """Return the amplitudes of the first rows, which are the first numbers that a row draws."""
    return np.stack([task.draw_amplitudes(Draws(0, "spikes train", n)) for n in range(count)])


def curve(amplitude_2DF: Amplitudes, time_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return z_TD by a plain sum over components."""
    value = 0.0
    for number, frequency in enumerate(task.FREQUENCY_F):
        angle_T = 2 * np.pi * frequency * time_T[:, None]
        value += amplitude_2DF[0, :, number] * np.cos(angle_T)
        value += amplitude_2DF[1, :, number] * np.sin(angle_T)
    return np.asarray(value)


def test_a_row_is_events_padding_and_queries() -> None:
    """A short row keeps the first events."""
    found = rows_of("test", 50)
    short = rows_of("test", 50, 46)
    np.testing.assert_array_equal(short.ids_NT[:, :30], found.ids_NT[:, :30])
    np.testing.assert_array_equal(short.times_NT[:, :30], found.times_NT[:, :30])
    assert found.ids_NT.shape == (50, 256)
    assert found.times_NT.shape == (50, 256)
    assert found.latent_NQD.shape == (50, 16, 2)
    assert found.ids_NT.dtype == np.int64
    assert found.times_NT.dtype == np.float64
    assert found.latent_NQD.dtype == np.float32

    for ids_T, times_T in zip(found.ids_NT, found.times_NT, strict=True):
        num_events = int((ids_T < 16).sum())
        assert ids_T[:num_events].max() < 16
        assert ids_T.max() <= task.PADDING
        assert (ids_T[num_events:240] == task.PADDING).all()
        assert (ids_T[240:] == task.QUERY).all()

        event_E = times_T[:num_events]
        assert (np.diff(event_E) >= 0).all()
        assert event_E[0] >= 0
        assert event_E[-1] < 1
        assert (times_T[num_events:240] == 0).all()
        np.testing.assert_array_equal(times_T[240:], np.arange(1, 32, 2) / 32)


def test_the_latent_is_what_it_says() -> None:
    """A plain sum gives its values at the queries; mean, variance and covariance fit the law."""
    amplitude_N2DF = amplitudes(2000)
    latent_NQD = rows_of("train", 5).latent_NQD
    for amplitude_2DF, latent_QD in zip(amplitude_N2DF[:5], latent_NQD, strict=True):
        np.testing.assert_allclose(latent_QD, curve(amplitude_2DF, task.QUERY_S), atol=1e-6)

    values = np.stack([task.latent(each, task.QUERY_S) for each in amplitude_N2DF])
    assert task.VARIANCE_F.sum() == pytest.approx(1)
    at_once = values[:, 5].ravel()
    assert stats.kstest(at_once, stats.norm.cdf).pvalue > 1e-6
    # Covariance between the dimensions, and between queries 2 and 9, which are 7/16 s apart.
    expected = (task.VARIANCE_F * np.cos(2 * np.pi * task.FREQUENCY_F * 7 / 16)).sum()
    assert np.mean(values[:, 5, 0] * values[:, 5, 1]) == pytest.approx(0, abs=0.1)
    assert np.mean(values[:, 2] * values[:, 9]) == pytest.approx(expected, abs=0.1)


def test_units_fire_at_their_rates() -> None:
    """Each unit's counts in each sixteenth of the second match the integral of the model.

    They are summed separately over the rows with high and with low expected counts, because a
    rate that is right only on average would otherwise pass.
    """
    found = rows_of("train", NUM_ROWS)
    row, slot = np.nonzero(found.ids_NT < task.NUM_UNITS)
    part = (found.times_NT[row, slot] * NUM_BINS).astype(np.int64)
    # How often each unit fired in each part of the second.
    counts_NBU = np.zeros((NUM_ROWS, NUM_BINS, task.NUM_UNITS))
    np.add.at(counts_NBU, (row, part, found.ids_NT[row, slot]), 1)
    time_T = (np.arange(16 * NUM_BINS) + 0.5) / (16 * NUM_BINS)
    expected = []
    for amplitude_2DF in amplitudes(NUM_ROWS):
        drive_TU = curve(amplitude_2DF, time_T) @ task.DIRECTION_UD.T * task.GAIN_U
        rate_TU = task.PEAK_U / (1 + np.exp(-drive_TU))
        expected.append(rate_TU.reshape(NUM_BINS, 16, -1).mean(axis=1) / NUM_BINS)
    expected_NBU = np.stack(expected)

    much_NBU = expected_NBU > np.median(expected_NBU, axis=0)
    for chosen_NBU in (much_NBU, ~much_NBU):
        count_BU = (counts_NBU * chosen_NBU).sum(axis=0)
        mean_BU = (expected_NBU * chosen_NBU).sum(axis=0)
        chi_square = ((count_BU - mean_BU) ** 2 / mean_BU).sum()
        assert mean_BU.min() > 5
        assert 1e-6 < stats.chi2.sf(chi_square, count_BU.size) < 1 - 1e-6
