"""Tests of the detection of GPUs."""

import pytest
from support.gpus import show_gpus

from rope_exp import machine


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("3", ["3"]),
        ("0, 2", ["0", "2"]),
        ("2,7,1", ["2"]),
        ("GPU-ab,GPU-cd", ["GPU-ab", "GPU-cd"]),
    ],
)
def test_the_environment_limits_the_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    """Entries after an unknown index are hidden, as in CUDA."""
    show_gpus(monkeypatch, 4)
    assert machine.gpus() == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpus() == expected


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES can only limit the driver's GPUs, not add any."""
    show_gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert machine.gpus() == []
