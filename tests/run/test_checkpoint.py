"""Tests that checkpoints are saved whole or not at all, and verified or refused."""

import contextlib
import errno
import hashlib
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from support.harm import Harm, efforts, harmed, try_harms
from support.refused import refused

from rope_exp import checkpoint
from rope_exp.errors import CheckpointError
from rope_exp.files import open_file, write_json
from rope_exp.folder import list_steps

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tied = torch.randn(5, 3, generator=generator)
    return {"a.weight": tied, "head": tied, "b": torch.randn(7, generator=generator)}


def save(folder: Path, step: int) -> None:
    """Save a small checkpoint, different at each step."""
    moments = {"a.weight.exp_avg": torch.ones(5, 3)}
    checkpoint.save(folder, step, tensors(step), moments, {"order_sha256": f"{step:x}"})


def seal(path: Path) -> None:
    """Write a manifest that matches the current files of a checkpoint."""
    digests = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in FILES[:3]}
    write_json(path / "manifest.json", {name: {"sha256": found} for name, found in digests.items()})


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    """Who may read one file may read all, and tied tensors are saved under both names."""
    save(tmp_path, 12)
    files = [*(tmp_path / "step_00000012").iterdir()]
    assert sorted(path.name for path in files) == sorted(FILES)
    assert len({path.stat().st_mode for path in files}) == 1
    loaded = checkpoint.load(tmp_path, 12)
    assert loaded.step == 12
    assert loaded.state["order_sha256"] == "c"
    assert loaded.model.keys() == tensors(12).keys()
    assert all(torch.equal(loaded.model[name], tensor) for name, tensor in tensors(12).items())


def newest_step(folder: Path) -> int | None:
    newest = checkpoint.load_newest(folder)
    return None if newest is None else newest.step


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_a_pipe(path: Path) -> None:
    """Replace a file by a named pipe, which whoever opens it would wait for."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [halve, Path.unlink, put_a_folder, put_a_pipe])
def test_a_harmed_file_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, harm: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "step_00000002" / name
    harm(path)
    assert newest_step(tmp_path) == 1
    assert str(path) in capsys.readouterr().err
    shutil.rmtree(tmp_path / "step_00000001")
    with refused("no checkpoint under", "verifies"):
        checkpoint.load_newest(tmp_path)


@efforts(200, 5000)
def test_any_change_to_a_file_is_found(tmp_path: Path, effort: int) -> None:
    """If the manifest matches the changed file, it is read or refused: nothing else is raised."""
    save(tmp_path, 2)
    folder = tmp_path / "step_00000002"

    def check(harm: Harm, name: str) -> None:
        before = {file: (folder / file).read_bytes() for file in FILES}
        (folder / name).write_bytes(harmed(before[name], harm))
        try:
            if name != "manifest.json":
                with refused("step_00000002", name):
                    checkpoint.load(tmp_path, 2)
                seal(folder)
            with contextlib.suppress(CheckpointError):
                checkpoint.load(tmp_path, 2)
        finally:
            for file, content in before.items():
                (folder / file).write_bytes(content)

    try_harms(check, effort, st.sampled_from(FILES))
    checkpoint.load(tmp_path, 2)


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


HOSTILE = {
    "oversized header": struct.pack("<Q", 2**63 - 1) + b"{}",
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "empty": b"",
}


@pytest.mark.parametrize("kind", [*HOSTILE, "pickle", "torch"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_lies_is_refused_and_never_run(tmp_path: Path, name: str, kind: str) -> None:
    """The manifest matches the file, so only its parser can refuse it."""
    canary = tmp_path / "canary"
    save(tmp_path, 1)
    path = tmp_path / "step_00000001" / name
    if kind == "torch":
        torch.save({"a": Bomb(canary)}, path)
    else:
        path.write_bytes(HOSTILE.get(kind, pickle.dumps(Bomb(canary))))
    if name != "manifest.json":
        seal(path.parent)
    with refused(name):
        checkpoint.load(tmp_path, 1)
    assert not canary.exists()


def test_pruning_drops_what_was_passed_over(tmp_path: Path) -> None:
    """Step 9 did not verify, so the run resumed from step 3 and has now saved step 4."""
    assert newest_step(tmp_path) is None
    for step in (1, 2, 3, 9, 4):
        save(tmp_path, step)
    assert newest_step(tmp_path) == 9
    checkpoint.prune(tmp_path, keep=2, newest=4)
    assert list_steps(tmp_path) == [3, 4]


def test_a_checkpoint_is_renamed_durably_before_its_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[int]
) -> None:
    """Otherwise, a power cut could leave a partial checkpoint under its name."""
    for step in (1, 2):
        save(tmp_path, step)
    synced.clear()
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda path: seen.append((path.name, list(synced))))
    checkpoint.prune(tmp_path, keep=1, newest=2)
    assert seen == [(".dropped-step_00000001", [tmp_path.stat().st_ino])]


def test_a_file_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def forbidden(path: Path) -> Any:
        if path.name == "optimizer.safetensors" and "00000002" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path)

    monkeypatch.setattr(checkpoint, "open_file", forbidden)
    with refused("step_00000002/optimizer.safetensors", by=PermissionError):
        checkpoint.load_newest(tmp_path)
    assert list_steps(tmp_path) == [1, 2]
