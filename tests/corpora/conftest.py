"""An empty cache for the data tests."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the cache of prepared corpora, and return it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ROPE_EXP_CACHE", str(folder))
    return folder
