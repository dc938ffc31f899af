"""Fixtures of the data tests: a corpus and an empty cache."""

from pathlib import Path

import pytest
from support.corpora import PLAIN_TEXTS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the cache of prepared corpora, and return it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ROPE_EXP_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a valid corpus of plain text."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(PLAIN_TEXTS):
        (folder / f"{number}.txt").write_text(text)
    return folder
