"""The environment in which a child finds this very package."""

import os
import sys
from importlib.machinery import PathFinder

import pytest

from rope_exp.system.processes import ROOT, child_environment


def test_a_child_finds_a_package_that_nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout comes first on the child's path, before what the user has there."""
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    environment = child_environment(RANK="1")
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/of/the/user"
    assert environment["RANK"] == "1"


def test_an_importable_package_needs_no_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry of sys.path is this process's own, and a child has it not."""
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(sys, "path", ["/of/this/script", str(ROOT)])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "PYTHONPATH" not in child_environment()
