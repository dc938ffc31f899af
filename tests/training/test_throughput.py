"""Rates are medians over training steps alone, and MFU refuses to flatter."""

import pytest

from rope_exp.system.errors import ConfigError
from rope_exp.training import throughput
from rope_exp.training.throughput import WARMUP_STEPS, Throughput, gpu_peak_flops_per_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, set by the test."""
    now = [0.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    return now


def take(steps: Throughput, clock: list[float], seconds: list[float]) -> None:
    for length in seconds:
        clock[0] += length
        steps.step()


def test_a_rate_is_the_median_over_steps_after_warmup(clock: list[float]) -> None:
    steps = Throughput(100, 1, None)
    assert steps.overall() is None
    take(steps, clock, [60.0] + [9.0] * WARMUP_STEPS + [2.0, 2.0, 50.0, 2.0, 4.0])
    assert steps.overall() == 50.0
    assert steps.recent(2) == 100 / 3


def test_the_step_after_a_pause_is_not_timed(clock: list[float]) -> None:
    steps = Throughput(100, 1, None)
    take(steps, clock, [1.0, 1.0])
    steps.pause()
    take(steps, clock, [500.0, 1.0])
    assert steps.recent(99) == 100.0
    assert steps.overall() == 100.0


def test_mfu_is_operations_over_peak_and_never_above_one() -> None:
    steps = Throughput(100, 10, 2000.0)
    assert steps.mfu(50.0) == 0.25
    assert steps.mfu(None) is None
    assert Throughput(100, 10, None).mfu(50.0) is None
    with pytest.raises(AssertionError, match="MFU 250%"):
        steps.mfu(500.0)


def test_an_unknown_card_needs_its_peak_given() -> None:
    assert gpu_peak_flops_per_s("NVIDIA H200", None) == 989e12
    assert gpu_peak_flops_per_s("NVIDIA H100 PCIe", None) == 756e12
    assert gpu_peak_flops_per_s("NVIDIA H100 80GB HBM3", None) == 989e12
    assert gpu_peak_flops_per_s("NVIDIA Nobody", 100.0) == 100e12
    assert gpu_peak_flops_per_s("NVIDIA Nobody", 0.0) is None
    with pytest.raises(
        ConfigError,
        match=r"train.peak_tflops=null: the dense bf16 peak of NVIDIA Nobody is not known",
    ):
        gpu_peak_flops_per_s("NVIDIA Nobody", None)
