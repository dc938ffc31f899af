"""Test of the environment in which a child process imports this very package."""

import os

import pytest

from rope_exp.system.processes import ROOT, child_environment


def test_a_child_finds_a_package_that_nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout comes first on the child's path, before the user's own entries."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    environment = child_environment(RANK="1")
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/of/the/user"
    assert environment["RANK"] == "1"
