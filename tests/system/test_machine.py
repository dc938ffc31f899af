"""Tests of the detection of GPUs, and of the environment of child processes."""

import os
from pathlib import Path

import pytest
from support.gpus import show_gpus

from rope_exp import machine
from rope_exp.machine import ROOT, child_environment


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


def test_a_child_finds_a_checkout_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout comes before the user's own entries; an installed package needs none."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    environment = child_environment(RANK="1")
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/of/the/user"
    assert environment["RANK"] == "1"

    # Only an installed package holds its configs.
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(machine, "PACKAGE", tmp_path)
    assert child_environment()["PYTHONPATH"] == "/of/the/user"
