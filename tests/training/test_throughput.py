"""Tests of training speed, a median over steps, and of MFU."""

import pytest
import torch

from rope_exp.compose import run_config
from rope_exp.step import UNTIMED_STEPS, Throughput

CPU = torch.device("cpu")


def made(peak: float | None) -> Throughput:
    """Return a Throughput by FLOPs per token of two sequence lengths."""
    steps = Throughput(run_config([]), 256, CPU)
    steps.flops_per_token = {8: 10, 32: 40}
    steps.peak_flops_per_s = peak
    return steps


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose one element replaces the time of perf_counter."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def take(
    steps: Throughput, clock: list[float], seconds: list[float], tokens: int = 100, length: int = 8
) -> None:
    for step_s in seconds:
        clock[0] += step_s
        steps.step(tokens, length)


def test_a_rate_is_the_median_over_steps_after_warmup(clock: list[float]) -> None:
    steps = made(None)
    assert steps.speed() == {"tokens_per_s": None, "mfu": None}
    take(steps, clock, [60.0] + [9.0] * UNTIMED_STEPS + [2.0, 2.0, 50.0, 2.0, 4.0])
    assert steps.speed()["tokens_per_s"] == pytest.approx(50.0)
    assert steps.speed(2) == {"tokens_per_s": pytest.approx(100 / 3), "mfu": None}
    # The step after a pause is not timed.
    steps.pause()
    take(steps, clock, [500.0, 4.0])
    assert steps.speed(2)["tokens_per_s"] == pytest.approx(25.0)


def test_steps_of_several_lengths_count_by_their_own_tokens(clock: list[float]) -> None:
    """Medians are over all six steps, in seconds per token and in seconds per FLOP."""
    steps = made(2000.0)
    take(steps, clock, [0.0, 2.0, 2.0, 2.0])
    take(steps, clock, [3.0, 3.0, 3.0], tokens=60, length=32)
    assert steps.speed(6) == {
        "tokens_per_s": pytest.approx(2 / (2 / 100 + 3 / 60)),
        "mfu": pytest.approx(2 / (2 / 1000 + 3 / 2400) / 2000),
    }
    assert steps.speed(3)["tokens_per_s"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("NVIDIA H200", "null", 8 * 989e12),
        ("NVIDIA H200", "100.0", 8 * 100e12),
        ("NVIDIA Nobody", "null", None),
        ("NVIDIA Nobody", "100.0", 8 * 100e12),
        ("NVIDIA H200", "0.0", None),
    ],
)
def test_an_unlisted_card_trains_without_mfu_unless_told(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, expected: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    config = run_config(["launch.num_processes=8", f"train.peak_tflops={given}"])
    assert Throughput(config, 256, torch.device("cuda")).peak_flops_per_s == expected
    assert Throughput(config, 256, CPU).peak_flops_per_s is None
