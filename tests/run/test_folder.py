"""The run folder: whole rows in step order, none twice, and files that appear whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import REPOSITORY

from rope_exp.config.compose import run_config
from rope_exp.run.folder import (
    read_config,
    read_env,
    read_result,
    write_config,
)
from rope_exp.run.metrics import read_metrics
from rope_exp.system.errors import DiskError, RecordError
from rope_exp.system.files import check_space, read_json, try_lock, write_atomically, write_json


def test_config_yaml_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    config = run_config(["pe=vo_rope", "seed=7"])
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config


KINDS = (".py", ".md", ".yaml", ".c", ".json")


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


def test_too_little_space_is_said_with_folder_and_bytes(tmp_path: Path) -> None:
    check_space(tmp_path / "deep" / "down", 1, "a byte")
    with pytest.raises(
        DiskError,
        match=r"deep/down: a lot needs 10,000,000,000,000,000,000 bytes and [\d,]+ are free",
    ):
        check_space(tmp_path / "deep" / "down", 10**19, "a lot")
    assert list(tmp_path.iterdir()) == []


def test_the_repository_holds_no_word_of_where_it_was_made() -> None:
    words = ("/wo" + "rk/", "/ro" + "ot/", "/tm" + "p/")
    folders = ("rope_exp", "tests", "scripts", "docs", "configs")
    kept = [
        path
        for folder in folders
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in KINDS
    ]
    for path in [*kept, *REPOSITORY.glob("*.md"), REPOSITORY / "Makefile"]:
        assert not any(word in path.read_text(encoding="utf-8") for word in words), path


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "env.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    tmp_path: Path, name: str, kind: str
) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        (tmp_path / "elsewhere").write_text("{}")
        path.symlink_to(tmp_path / "elsewhere")
    reader = {"config.yaml": read_config, "result.json": read_result, "env.json": read_env}.get(
        name, read_metrics
    )
    with pytest.raises(RecordError, match=name):
        reader(path.parent)


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"status": "running"}', '{"status": "finished"}', '{"status": "diverged", "val/loss": null}', "[]", "",
        '{"status": ' + "1" * 5000 + "}", "[" * 100_000,
    ],
    ids=["empty", "running", "finished", "diverged", "list", "nothing", "long", "deep"],
)  # fmt: skip
def test_a_result_that_no_run_writes_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RecordError, match=r"result\.json"):
        read_result(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a\n  b: *a\n",
        "- 1\n",
        "seed: 1\n",
        "\x00",
        "{",
        "a: " + "[" * 5000,
        "!!python/object:os.system x",
    ],
    ids=["circular", "list", "short", "nul", "open", "deep", "tag"],
)
def test_a_config_that_no_run_writes_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RecordError, match=r"config\.yaml"):
        read_config(tmp_path)


def test_a_lock_lives_as_long_as_a_child_that_inherited_it_and_does_not_follow_a_moved_folder(
    tmp_path: Path,
) -> None:
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


def test_a_pipe_or_a_link_in_a_locks_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=name):
            try_lock(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
