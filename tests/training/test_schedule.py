"""Tests of the learning-rate schedules against their closed forms."""

from dataclasses import replace

import pytest

from rope_exp import step as scheduling
from rope_exp.config import RunConfig, TrainConfig
from rope_exp.schedule.wsd import Config as WsdConfig
from rope_exp.sections import OptimConfig, ScheduleConfig

PEAK = 1e-3
COSINE = ScheduleConfig(warmup_fraction=0.1, final_fraction=0.1)
WSD = WsdConfig(warmup_fraction=0.1, final_fraction=0.0, decay_fraction=0.2)


def learning_rate(step: int, num_steps: int, schedule: ScheduleConfig) -> float:
    """Return the learning rate of a step in a run whose peak is PEAK."""
    optim = OptimConfig(lr=PEAK)
    train = TrainConfig(num_steps=num_steps)
    return scheduling.learning_rate(step, RunConfig(optim=optim, schedule=schedule, train=train))


@pytest.mark.parametrize(
    ("schedule", "num_steps", "rates"),
    [
        (COSINE, 100, {1: 1e-4, 5: 5e-4, 10: PEAK, 55: (1e-3 + 1e-4) / 2, 100: 1e-4}),
        (WSD, 100, {1: 1e-4, 5: 5e-4, 10: PEAK, 45: PEAK, 80: PEAK, 90: 5e-4, 100: 0.0}),
        (replace(WSD, decay_fraction=0.0), 100, {10: PEAK, 100: PEAK}),
        (replace(WSD, warmup_fraction=0.0), 1, {1: PEAK}),
    ],
)
def test_a_schedule_is_its_closed_form(
    schedule: ScheduleConfig, num_steps: int, rates: dict[int, float]
) -> None:
    """It warms up linearly; a decay of less than one step ends at the peak."""
    made = {step: learning_rate(step, num_steps, schedule) for step in rates}
    assert made == pytest.approx(rates, abs=1e-12)
