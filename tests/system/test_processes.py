"""The environment in which a child finds this very package."""

import os

import pytest

from rope_exp.system.processes import ROOT, child_environment


def test_a_child_finds_a_package_that_nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout comes first on the child's path, before what the user has there."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    environment = child_environment(RANK="1")
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/of/the/user"
    assert environment["RANK"] == "1"
