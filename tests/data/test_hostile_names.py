"""Folders made to harm: links, and names that mean something else to some library."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import left_in
from support.corpora import BYTES, data_config, num_documents
from support.refused import refused

from rope_exp.data.prepare import prepare
from rope_exp.system.errors import ConfigError, DataError

LINKS: dict[str, Callable[[Path, Path], object]] = {
    "to a file outside": lambda folder, canary: (folder / "x.txt").symlink_to(canary),
    "to a file outside, by dots": lambda folder, canary: (folder / "x.txt").symlink_to(
        "../secret.txt"
    ),
    "to a folder outside": lambda folder, canary: (folder / "x").symlink_to(canary.parent),
    "to its own folder": lambda folder, canary: (folder / "x").symlink_to("."),
    "to itself": lambda folder, canary: (folder / "x.txt").symlink_to("x.txt"),
    "to nothing": lambda folder, canary: (folder / "x.txt").symlink_to("none.txt"),
    "to a pipe": lambda folder, canary: (
        os.mkfifo(folder / "pipe"),
        (folder / "x.txt").symlink_to("pipe"),
    ),
    "to a device": lambda folder, canary: (folder / "x.txt").symlink_to("/dev/zero"),
    "through another": lambda folder, canary: (
        (folder / "y").symlink_to(canary),
        (folder / "x.txt").symlink_to("y"),
    ),
}


@pytest.mark.parametrize("case", LINKS)
def test_a_link_that_leads_out_of_the_folder_is_refused(
    folder: Path, canary: Path, cache: Path, case: str
) -> None:
    """Or nowhere."""
    LINKS[case](folder, canary)
    words = ("data.path=", f"{folder}/x", ": is a link that leads to no file of this folder")
    with refused(*words, by=ConfigError):
        prepare(data_config(path=folder), BYTES)
    assert left_in(cache) == []


def test_a_link_within_the_folder_and_one_to_it_are_read(folder: Path, tmp_path: Path) -> None:
    alone = prepare(data_config(path=folder), BYTES)
    (folder / "x.txt").symlink_to("1.txt")
    (tmp_path / "link").symlink_to(folder)
    linked = prepare(data_config(path=tmp_path / "link"), BYTES)
    assert num_documents(alone) == 60
    assert num_documents(linked) == 61


ODD_NAMES = [
    "a\nb.txt", "😀.txt", "a..b.txt", "%2e%2e%2fsecret.txt", "n" * 250 + ".txt", "*.txt", "~.txt",
    "[a]?.txt", "$(touch canary).txt", "-rf.txt", "a b\t.txt", "\udcff.txt", "http:.txt", "\\0.txt",
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


@pytest.mark.parametrize("name", ["a::b.txt", "::.txt", "a::"])
def test_a_name_of_two_places_is_refused(tmp_path: Path, canary: Path, name: str) -> None:
    """To the file library, root/a::/secret.txt is secret.txt of the machine's root, in root/a."""
    path = tmp_path / "corpus" / name
    if name == "a::":
        path /= "secret.txt"
    path.parent.mkdir(parents=True)
    path.write_text("a\nb\nc\n")
    for given in (tmp_path / "corpus", path):
        with refused(f"data.path={path}: a name may not hold ::", by=ConfigError):
            prepare(data_config(path=given, sample_by="line"), BYTES)


@pytest.mark.parametrize(
    "path", ["n" * 300 + ".txt", "n/" * 3000, "\ud800", "/dev/zero", "/dev/null", "/proc/self/mem"]
)
def test_a_path_that_can_be_no_corpus_is_one_sentence(path: str, cache: Path) -> None:
    with refused("data.path=", by=ConfigError):
        prepare(data_config(path=path), BYTES)
    assert left_in(cache) == []


def test_pipes_and_folders_with_a_file_s_name_are_passed_over(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    (folder / "folder.txt").mkdir()
    assert num_documents(prepare(data_config(path=folder), BYTES)) == 60


# -- a hostile cache -------------------------------------------------------------------------------


def test_a_prepared_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    data = data_config(path=folder)
    prepared = prepare(data, BYTES)
    prepared.folder.rename(tmp_path / "elsewhere")
    words = "is a link or a file, not a prepared folder; remove it"
    for target in (tmp_path / "elsewhere", tmp_path / "nowhere"):
        prepared.folder.unlink(missing_ok=True)
        prepared.folder.symlink_to(target)
        with refused(words, by=DataError):
            prepare(data, BYTES)

    prepared.folder.unlink()
    prepared.folder.write_text("")
    with refused(words, by=DataError):
        prepare(data, BYTES)
    assert not (tmp_path / "nowhere").exists()


def test_leftovers_are_cleared_without_following_links(
    folder: Path, tmp_path: Path, cache: Path
) -> None:
    data = data_config(path=folder)
    prepared = prepare(data, BYTES)
    name = prepared.folder.name
    prepared.folder.rename(tmp_path / "old")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (cache / f".{name}.1").symlink_to(precious)
    (cache / f".{name}.2").write_text("a file")
    (cache / f".{name}.3").mkdir()
    (cache / f".{name}.3" / "link").symlink_to(precious)
    prepare(data, BYTES).verify()
    assert left_in(cache) == [name]
    assert (precious / "file").read_text() == "kept"


@pytest.mark.parametrize("kind", ["folder", "link", "locks is a file"])
def test_a_lock_that_is_no_file_is_refused(
    folder: Path, tmp_path: Path, cache: Path, kind: str
) -> None:
    """And nothing is written through it."""
    data = data_config(path=folder)
    prepared = prepare(data, BYTES)
    prepared.folder.rename(tmp_path / "old")
    (tmp_path / "precious").write_text("kept")
    lock = cache / "locks" / prepared.folder.name
    lock.unlink()
    if kind == "folder":
        lock.mkdir()
    elif kind == "link":
        lock.symlink_to(tmp_path / "precious")
    else:
        lock.parent.rmdir()
        lock.parent.write_text("")
    with refused("data.cache_dir=", ": cannot be written: ", by=ConfigError):
        prepare(data, BYTES)
    assert (tmp_path / "precious").read_text() == "kept"
    assert left_in(cache) == []
