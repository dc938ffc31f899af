"""Tests of odd names and links in a folder, and of a cache that cannot be locked."""

import os
from pathlib import Path

import pytest
from support.configs import left_in
from support.corpora import BYTES, data_config, num_documents
from support.refused import refused

from rope_exp.errors import ConfigError
from rope_exp.prepare import prepare


def test_links_are_read(folder: Path, tmp_path: Path) -> None:
    alone = prepare(data_config(path=folder), BYTES)
    (folder / "x.txt").symlink_to("1.txt")
    (tmp_path / "link").symlink_to(folder)
    linked = prepare(data_config(path=tmp_path / "link"), BYTES)
    assert num_documents(alone) == 60
    assert num_documents(linked) == 61


ODD_NAMES = [
    "😀.txt", "a..b.txt", "%2e%2e%2fsecret.txt", "n" * 250 + ".txt", "~.txt",
    "$(touch canary).txt", "-rf.txt", "a b\t.txt", "\udcff.txt", "http:.txt", "\\0.txt",
    "a\\..\\secret.txt",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_is_a_name_and_no_more(tmp_path: Path, canary: Path, name: str) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / name).write_text("".join(f"line {number}\n" for number in range(50)))
    for path in (tmp_path / "corpus", tmp_path / "corpus" / name):
        prepared = prepare(data_config(path=path, sample_by="line", holdout_fraction=0.3), BYTES)
        assert num_documents(prepared) == 50
        assert sum(prepared.corpus["text_bytes"].values()) in range(340, 500)
    assert sorted(os.listdir(tmp_path)) == ["cache", "corpus", "secret.txt"]


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self/mem"])
def test_a_path_that_can_be_no_corpus_is_one_sentence(path: str, cache: Path) -> None:
    with refused("data.path=", by=ConfigError):
        prepare(data_config(path=path), BYTES)
    assert left_in(cache) == []


def test_pipes_and_folders_with_a_file_s_name_are_passed_over(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    (folder / "folder.txt").mkdir()
    assert num_documents(prepare(data_config(path=folder), BYTES)) == 60


# -- the cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "locks is a file"])
def test_a_lock_that_is_no_file_is_refused(
    folder: Path, tmp_path: Path, cache: Path, kind: str
) -> None:
    data = data_config(path=folder)
    prepared = prepare(data, BYTES)
    prepared.folder.rename(tmp_path / "old")
    lock = cache / "locks" / prepared.folder.name
    lock.unlink()
    if kind == "folder":
        lock.mkdir()
    else:
        lock.parent.rmdir()
        lock.parent.write_text("")
    with refused("data.cache_dir=", ": cannot be written: ", by=ConfigError):
        prepare(data, BYTES)
    assert left_in(cache) == []
