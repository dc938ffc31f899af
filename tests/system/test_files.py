"""Tests of atomic writes, durable folders, JSON, disk space and locks."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.configs import REPOSITORY
from support.refused import refused

from rope_exp import files
from rope_exp.errors import RunFolderError
from rope_exp.files import (
    DiskError,
    lock,
    make_folders,
    read_json,
    refuse_full_disk,
    try_lock,
    write_atomically,
    write_json,
)


def test_nan_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"val/loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_new_folders_have_durable_names(tmp_path: Path, synced: list[int]) -> None:
    """The parent of each new folder is synced, so that the folder's name is on the disk."""
    for _ in range(2):
        make_folders(tmp_path / "a/b")
        assert synced == [tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino]

    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "file")


@pytest.mark.parametrize(
    ("needed_bytes", "number", "words"),
    [
        (10**18, errno.ENOSPC, "the file needs 1,000,000,000,000,000,000 bytes and 5,000 are free"),
        (10, errno.ENOSPC, "the file needs more than is free (5,000 bytes, 0 files)"),
        (None, errno.ENOSPC, "the file needs more than is free (5,000 bytes, 0 files)"),
        (10, errno.EDQUOT, "the file exceeds your quota of disk space"),
    ],
    ids=["bytes", "inodes", "unknown", "quota"],
)
def test_a_full_disk_says_what_is_used_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    needed_bytes: int | None,
    number: int,
    words: str,
) -> None:
    """The error of a library in Rust, which reports the system's as text, is told likewise."""
    disk = SimpleNamespace(f_files=100, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    monkeypatch.setattr(files, "free_bytes", lambda folder: 5000)
    for error in (OSError(number, "full"), Exception(f"full (os error {number})")):
        with (
            refused(f"no space left in {tmp_path}: {words}", by=DiskError),
            refuse_full_disk(tmp_path, needed_bytes, "the file"),
        ):
            raise error


WRITES = """
import sys
from pathlib import Path
from rope_exp.files import write_atomically
for number in range(50):
    write_atomically(Path(sys.argv[1]), sys.argv[2] * 5000)
"""


def test_many_that_write_one_file_publish_it_whole(tmp_path: Path) -> None:
    """No writer fails, and a reader never sees a part of the file or a mixture."""
    path = tmp_path / "record.json"
    command = [sys.executable, "-c", WRITES, str(path)]
    writers = [
        subprocess.Popen([*command, letter], cwd=REPOSITORY, stderr=subprocess.PIPE)
        for letter in "abcdefgh"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_text())
    assert [writer.communicate()[1] for writer in writers] == [b""] * len(writers)
    assert seen <= {letter * 5000 for letter in "abcdefgh"}
    assert list(tmp_path.iterdir()) == [path]


@given(st.binary(max_size=200))
@example(b"[]")
@example(b'{"status": ' + b"1" * 5000 + b"}")
@example(b"[" * 100_000)
def test_any_bytes_are_a_json_object_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("json") / "result.json"
    path.write_bytes(raw)
    try:
        assert isinstance(read_json(path), dict)
    except RunFolderError as error:
        assert str(path) in str(error)


def test_a_lock_lives_as_long_as_a_child_that_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    held = try_lock(path)
    assert held is not None
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[held])
    os.close(held)
    assert try_lock(path) is None
    child.communicate(b"\n", timeout=30)
    again = try_lock(path)
    assert again is not None
    os.close(again)


@pytest.mark.parametrize("is_moved", [False, True])
def test_whoever_waits_for_a_lock_gets_it_when_it_is_free(tmp_path: Path, is_moved: bool) -> None:
    """If the folder is moved meanwhile, the waiter gets the lock of the new folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    held = try_lock(folder / ".lock")
    assert held is not None
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(lock(folder / ".lock")))
    waiter.start()
    time.sleep(0.1)
    assert found == []

    if is_moved:
        folder.rename(tmp_path / "aside")
        folder.mkdir()
    os.close(held)
    waiter.join(timeout=30)
    assert os.path.samestat(os.fstat(found[0]), (folder / ".lock").stat())
    assert try_lock(folder / ".lock") is None
    os.close(found[0])
