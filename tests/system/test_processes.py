"""Test of the environment in which a child process imports this very package."""

import os
from pathlib import Path

import pytest

from rope_exp import machine as processes
from rope_exp.machine import ROOT, child_environment


def test_a_child_finds_a_checkout_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout comes first on the child's path, before the user's own entries."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    environment = child_environment(RANK="1")
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/of/the/user"
    assert environment["RANK"] == "1"


def test_an_installed_package_needs_no_pythonpath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an installed package holds its configs."""
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(processes, "PACKAGE", tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "PYTHONPATH" not in child_environment()
