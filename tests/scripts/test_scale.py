"""Tests of the simulation in scripts/scale.py against closed forms."""

import math

import numpy as np
import pytest
import scale
from scale import PREEMPTIONS, RESTART_H, WAIT_H, Fleet, Job, chart, run_jobs, simulated, wall_hours

FLEET = Fleet(cells=90, cards=64, hours=10.0, ranks=1, save_s=36.0)


def test_without_interruptions_only_checkpoints_are_lost() -> None:
    """Ten hours cost ten checkpoints of 0.01 h, and 90 cells on 64 cards take two rounds."""
    job = Job(work_h=10.0, save_h=0.01, failures=0.0, preemptions=0.0)
    paid_J, waited_J, hits_J = run_jobs(job, 1.0, 3, np.random.default_rng(0))
    assert paid_J == pytest.approx([10.1] * 3)
    assert job.expected_h(1.0) == pytest.approx(10.1)
    assert not waited_J.any()
    assert not hits_J.any()

    found = FLEET.simulate(job, 1, 1.0, seed=0)
    assert found["lost"] == pytest.approx(1 - 10 / 10.1)
    assert found["wall_h"] == pytest.approx(20.2)
    assert found["used"] == pytest.approx(90 * 10 / (64 * 20.2))


@pytest.mark.parametrize("interval_h", [0.5, 3.0, 10.0])
def test_expected_time_is_that_of_theory(interval_h: float) -> None:
    """The mean is within four standard errors, also for 3 h, where the last segment is shorter."""
    job = Job(work_h=10.0, save_h=0.1, failures=0.05, preemptions=0.15)
    paid_J, waited_J, hits_J = run_jobs(job, interval_h, 20_000, np.random.default_rng(1))
    error = paid_J.std() / math.sqrt(len(paid_J))
    assert job.mtbf_h == pytest.approx(5.0)
    assert abs(paid_J.mean() - job.expected_h(interval_h)) < 4 * error

    # Interruptions come 0.2 times per running hour; three in four are preemptions, which wait.
    assert waited_J.sum() / hits_J.sum() == pytest.approx(0.75 * WAIT_H, rel=0.02)
    running_h = paid_J.sum() - RESTART_H * hits_J.sum()
    assert hits_J.sum() / running_h == pytest.approx(0.2, rel=0.02)


def test_the_best_interval_is_about_that_of_young_and_of_daly() -> None:
    job = Job(work_h=1000.0, save_h=0.01, failures=0.0, preemptions=0.1)
    grid = np.geomspace(0.02, 20, 400)
    lost = [job.expected_h(interval) for interval in grid]
    best = grid[int(np.argmin(lost))]
    assert job.young_h() == pytest.approx(math.sqrt(2 * 0.01 * 10))
    assert job.daly_h() == pytest.approx(best, rel=0.05)
    assert job.expected_h(job.young_h()) == pytest.approx(min(lost), rel=1e-3)


def test_a_job_takes_the_slot_that_is_free_first() -> None:
    assert wall_hours(np.array([3.0, 1.0, 1.0, 2.0]), 2) == 4.0


def test_rates_grow_with_cards_and_nodes() -> None:
    """Each card fails by itself, but a node of eight cards is preempted as a whole."""
    one, eight, nine = (FLEET.job("spot", size) for size in (1, 8, 9))
    assert eight.failures == pytest.approx(8 * one.failures)
    assert 1 / one.failures == pytest.approx(54 * 24 * 16384 / 419)
    assert one.preemptions == eight.preemptions == PREEMPTIONS["spot"]
    assert nine.preemptions == 2 * PREEMPTIONS["spot"]
    assert Fleet(90, 64, 10.0, 8, 36.0).job("spot", 1).work_h == 10.0 / 8


def test_the_same_seed_draws_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "REPEATS", 3)
    rows = simulated(FLEET, [60.0], seed=3)
    assert rows.equals(simulated(FLEET, [60.0], seed=3))
    assert not rows.equals(simulated(FLEET, [60.0], seed=4))
    assert len(rows) == 2 * 3 * 2
    # On reserved cards, Young's interval is longer than the run, which then saves only at its end.
    assert rows["minutes"][0] == 600 < rows["young_min"][0]
    drawn = chart(rows, FLEET).to_dict()
    assert drawn["facet"]["column"]["field"] == "capacity"
