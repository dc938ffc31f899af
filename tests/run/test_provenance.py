"""A checkout records its commit, an installed copy its version; results change no code."""

import subprocess
from pathlib import Path

import pytest
from support.command import write

from rope_exp.run import provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that tracks rope_exp/__init__.py, in which this package would lie."""
    write(tmp_path / "rope_exp" / "__init__.py", "")
    write(tmp_path / "README.md", "")
    commit = ["-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "one"]
    for words in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return tmp_path


def test_only_code_makes_a_checkout_dirty(checkout: Path) -> None:
    found = provenance.git_state()
    assert found is not None
    assert len(found["commit"]) == 40
    assert found["dirty"] is False

    write(checkout / "results" / "table.md", "a sweep's own output")
    write(checkout / "README.md", "prose")
    assert provenance.git_state() == found
    write(checkout / "configs" / "pe" / "mine.yaml", "name: mine")
    assert provenance.git_state() == found | {"dirty": True}


def test_an_installed_copy_is_not_of_the_repository_around_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in an ignored folder of a project's checkout, nor where that project tracks it."""
    write(checkout / "venv" / "rope_exp" / "__init__.py", "")
    monkeypatch.setattr(provenance, "ROOT", checkout / "venv")
    assert provenance.git_state() is None
    subprocess.run(["git", "-C", str(checkout), "add", "venv"], check=True)
    assert provenance.git_state() is None


def test_the_version_is_that_of_pyproject(checkout: Path) -> None:
    write(checkout / "pyproject.toml", '[project]\nname = "rope_exp"\nversion = "7.8.9"\n')
    assert provenance.own_version() == "7.8.9"
    write(checkout / "pyproject.toml", '[project]\nname = "other"\nversion = "7.8.9"\n')
    assert provenance.own_version() != "7.8.9"
