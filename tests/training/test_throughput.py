"""Rates are medians over training steps alone, and MFU refuses to flatter."""

import pytest
import torch

from rope_exp.training import throughput
from rope_exp.training.throughput import WARMUP_STEPS, Throughput, peak_flops_per_s


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


def test_mfu_is_operations_over_peak() -> None:
    steps = Throughput(100, 10, 2000.0)
    assert steps.mfu(50.0) == 0.25
    assert steps.mfu(None) is None
    assert Throughput(100, 10, None).mfu(50.0) is None


def test_mfu_above_one_is_a_warning_once_and_null(capsys: pytest.CaptureFixture[str]) -> None:
    """A peak that has proved to be wrong is not believed again: no later MFU flatters, either."""
    steps = Throughput(100, 10, 2000.0)
    assert steps.mfu(200.0) == 1.0
    assert [steps.mfu(rate) for rate in (500.0, 600.0, 50.0)] == [None] * 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: MFU 250%")
    assert "train.peak_tflops" in line


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("NVIDIA H200", None, 989e12),
        ("NVIDIA H100 PCIe", None, 756e12),
        ("NVIDIA H100 80GB HBM3", None, 989e12),
        ("NVIDIA H200", 100.0, 100e12),
        ("NVIDIA Nobody", None, None),
        ("NVIDIA Nobody", 100.0, 100e12),
        ("NVIDIA Nobody", 0.0, None),
    ],
)
def test_an_unlisted_card_trains_without_mfu_unless_told(
    monkeypatch: pytest.MonkeyPatch, name: str, given: float | None, expected: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops_per_s(torch.device("cuda"), 1, given) == expected
    eight = None if expected is None else 8 * expected
    assert peak_flops_per_s(torch.device("cuda"), 8, given) == eight


def test_a_cpu_has_no_peak() -> None:
    assert peak_flops_per_s(torch.device("cpu"), 1, 100.0) is None
