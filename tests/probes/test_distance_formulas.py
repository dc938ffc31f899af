"""Tests of the effects of distance: the decay bound, mean attention weights, and kappa."""

import cmath
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import normal
from torch import Tensor

from rope_exp.probes.distance import attention_by_distance, decay_bound, kappa
from rope_exp.rope import angles, frequencies, rotate

SEEDS = st.integers(0, 2**32 - 1)
DISTANCES = st.integers(-4096, 4096)
PUBLISHED = {0: 32.5, 1: 31.5382, 2: 28.956, 8: 19.8174, 64: 10.0899, 256: 6.5431}


def turned(x_HK: Tensor, position_T: Tensor, theta_F: Tensor) -> Tensor:
    """Return R_i x of each head, at each position."""
    angle_TF = angles(theta_F, position_T)
    x_1THK = x_HK.expand(1, len(position_T), -1, -1)
    return rotate(x_1THK, angle_TF.cos(), angle_TF.sin())[0]


def test_the_bound_meets_the_published_values() -> None:
    theta_F = frequencies(128, 10000.0, torch.float64)
    found = decay_bound(theta_F, torch.tensor([*PUBLISHED]))
    assert found.tolist() == pytest.approx([*PUBLISHED.values()], abs=5e-5)


@given(SEEDS, st.integers(1, 9), st.floats(-1e4, 1e4))
def test_the_bound_is_a_mean_of_partial_sums(seed: int, count: int, distance: float) -> None:
    """The reference adds up any frequencies one by one; those of several layers are batched."""
    theta_LF = normal(2, count, seed=seed)
    found_LM = decay_bound(theta_LF, torch.tensor([distance], dtype=torch.float64))
    for theta_F, found_M in zip(theta_LF.tolist(), found_LM.tolist(), strict=True):
        sums = list(itertools.accumulate(cmath.exp(1j * distance * theta) for theta in theta_F))
        assert found_M == pytest.approx([sum(map(abs, sums)) / count], abs=1e-7)


@pytest.mark.parametrize("length", [2, 3, 8, 9])
def test_weights_are_averaged_over_late_queries(length: int) -> None:
    """The reference averages query by query over i >= T/2, for each m < T/2."""
    weights_BHTT = normal(2, 3, length, length)
    late = [i for i in range(length) if i >= length / 2]
    expected = []
    for distance in range(math.ceil(length / 2)):
        found = [weights_BHTT[:, :, i, i - distance] for i in late]
        expected.append(float(torch.stack(found).mean()))
    assert attention_by_distance(weights_BHTT).tolist() == pytest.approx(expected, rel=1e-12)


@given(SEEDS, st.integers(0, 300))
def test_kappa_is_the_score_of_the_means_at_any_place(seed: int, distance: int) -> None:
    """kappa(m) is the mean over i of (R_i q)^T (R_{i-m} k) / sqrt(K), which is equal at every i."""
    theta_F = frequencies(8, 100.0, torch.float64)
    q_HK, k_HK = normal(2, 3, 8, seed=seed)
    position_T = distance + torch.arange(20)
    q_THK = turned(q_HK, position_T, theta_F)
    k_THK = turned(k_HK, position_T - distance, theta_F)
    mean_H = (q_THK * k_THK).sum(-1).mean(0) / math.sqrt(8)

    found_HM = kappa(q_HK, k_HK, theta_F, torch.tensor([distance]))
    torch.testing.assert_close(found_HM[:, 0], mean_H, atol=1e-9, rtol=0)
