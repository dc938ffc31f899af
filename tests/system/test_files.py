"""Files that appear whole, or not at all; locks that end with their processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from rope_exp.system.errors import DiskError, RecordError
from rope_exp.system.files import check_space, read_json, try_lock, write_atomically, write_json


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


@given(st.binary(max_size=200))
def test_any_bytes_are_a_json_object_or_a_clear_refusal(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("json") / "result.json"
    path.write_bytes(raw)
    try:
        assert isinstance(read_json(path), dict)
    except RecordError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)


def test_too_little_space_is_said_with_folder_and_bytes(tmp_path: Path) -> None:
    check_space(tmp_path / "deep" / "down", 1, "a byte")
    needed = "deep/down: a lot needs 10,000,000,000,000,000,000 bytes and "
    with refused(needed, "are free", by=DiskError):
        check_space(tmp_path / "deep" / "down", 10**19, "a lot")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_lives_as_long_as_a_child_that_has_it(tmp_path: Path) -> None:
    """And it does not follow its folder when that is moved aside: a new one has its own lock."""
    folder = tmp_path / "run"
    folder.mkdir()
    held = try_lock(folder / ".lock")
    assert held is not None
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held]
    )
    os.close(held)
    assert try_lock(folder / ".lock") is None
    child.communicate(b"\n", timeout=30)

    again = try_lock(folder / ".lock")
    assert again is not None

    folder.rename(tmp_path / "aside")
    folder.mkdir()
    other = try_lock(folder / ".lock")
    assert other is not None
    os.close(again)
    os.close(other)


def test_a_pipe_or_a_link_is_no_lock(tmp_path: Path) -> None:
    """It is refused, and not waited for or followed."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=name):
            try_lock(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
