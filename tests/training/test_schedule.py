"""Tests of the learning-rate schedules against their closed forms."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_exp import step as scheduling
from rope_exp.config import RunConfig
from rope_exp.schedule.wsd import Config as WsdConfig
from rope_exp.sections import AdamWConfig, CosineConfig, ScheduleConfig, TrainConfig

PEAK = 1e-3
COSINE = CosineConfig(warmup_fraction=0.1, final_fraction=0.1)
WSD = WsdConfig(warmup_fraction=0.1, final_fraction=0.0, decay_fraction=0.2)


def learning_rate(step: int, num_steps: int, schedule: ScheduleConfig) -> float:
    """Return the learning rate of a step in a run whose peak is PEAK."""
    optim = AdamWConfig(lr=PEAK)
    train = TrainConfig(num_steps=num_steps)
    return scheduling.learning_rate(step, RunConfig(optim=optim, schedule=schedule, train=train))


@pytest.mark.parametrize("schedule", [COSINE, WSD])
def test_warmup_rises_linearly_to_the_peak(schedule: ScheduleConfig) -> None:
    rates = [learning_rate(step, 100, schedule) for step in range(1, 11)]
    assert rates == pytest.approx([PEAK * step / 10 for step in range(1, 11)])


def test_cosine_is_half_way_in_the_middle_and_ends_at_its_floor() -> None:
    assert learning_rate(55, 100, COSINE) == pytest.approx((1e-3 + 1e-4) / 2)
    assert learning_rate(100, 100, COSINE) == pytest.approx(1e-4)


def test_wsd_is_flat_and_then_falls_in_a_straight_line() -> None:
    assert {learning_rate(step, 100, WSD) for step in range(10, 81)} == {PEAK}
    assert learning_rate(90, 100, WSD) == pytest.approx(5e-4)
    assert learning_rate(100, 100, WSD) == 0.0


@pytest.mark.parametrize(("num_steps", "decay"), [(100, 0.0), (1, 0.0), (1, 0.2)])
def test_wsd_without_a_step_of_decay_ends_at_its_peak(num_steps: int, decay: float) -> None:
    schedule = WsdConfig(warmup_fraction=0.0, final_fraction=0.0, decay_fraction=decay)
    assert learning_rate(num_steps, num_steps, schedule) == PEAK


@given(
    st.integers(1, 1000),
    st.floats(0, 0.5),
    st.floats(0, 1),
    st.one_of(st.none(), st.floats(0, 0.5)),
)
def test_a_rate_stays_within_the_peak_and_falls_after_warmup(
    num_steps: int, warmup: float, floor: float, decay: float | None
) -> None:
    """It is never negative, never above the peak, and never rises after the warm-up."""
    schedule: ScheduleConfig = CosineConfig("cosine", warmup, floor)
    if decay is not None:
        schedule = WsdConfig("wsd", warmup, floor, decay)
    rates = [learning_rate(step, num_steps, schedule) for step in range(1, num_steps + 1)]
    assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in rates)
    after = rates[round(warmup * num_steps) :]
    assert all(later <= earlier + 1e-15 for earlier, later in itertools.pairwise(after))
