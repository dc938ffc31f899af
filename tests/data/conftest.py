"""Fixtures of the data tests: corpora, an empty cache and a fake hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.corpora import PLAIN_TEXTS
from support.hub import Hub
from support.hub_commands import CARD, CORPUS, WORDS, Local, Run, prepared_from_files, runner


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


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Yield a hub with one corpus and one tokenizer."""
    corpus = {"README.md": CARD, **CORPUS}
    with Hub({"datasets/owner/corpus": corpus, "models/owner/words": WORDS}) as hub:
        yield hub


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    """Return a function that runs a command against that hub."""
    return runner(hub, tmp_path)


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    """Return the override and the digest of the hub's corpus, prepared from local files."""
    return prepared_from_files(CORPUS, tmp_path_factory.mktemp("local"))
