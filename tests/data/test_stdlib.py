"""Tests of the stdlib corpus."""

import json
import sys
from pathlib import Path

import pytest
from support.corpora import BYTES, all_documents, data_config

from rope_exp.corpora import library_files
from rope_exp.prepare import prepare


def test_the_library_without_tests_and_build_output() -> None:
    files = library_files()
    assert files["json/__init__.py"] == Path(json.__file__)
    assert {"json/decoder.py", "os.py", "asyncio/base_events.py"} <= files.keys()
    for name in files:
        assert not {"test", "site-packages"} & set(name.split("/"))
        assert not ("_sysconfigdata" in name or name.startswith("config-"))


def test_what_cannot_be_decoded_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    for number in range(40):
        (library / f"m{number}.py").write_text(f"x = {number}\n" * 20)
    (library / "bad.py").write_bytes(b"x = '\xff'\n")
    (library / "latin.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))

    prepared = prepare(data_config(kind="stdlib"), BYTES)
    assert prepared.corpus["files_not_decoded"] == 1
    assert prepared.corpus["python"] == sys.version.split()[0]
    documents = all_documents(prepared)
    assert "# coding: latin-1\nx = 'é'\n" in documents
    assert len(documents) == 41
