"""Tests that checkpoints are saved whole or not at all, and verified or refused."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import FILES, save, tensors
from support.refused import refused

from rope_exp import checkpoint


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, 12)
    assert sorted(path.name for path in (tmp_path / "step_00000012").iterdir()) == sorted(FILES)
    loaded = checkpoint.load(tmp_path, 12)
    assert loaded.step == 12
    assert loaded.state["order_sha256"] == "c"
    assert loaded.model.keys() == tensors(12).keys()
    assert all(torch.equal(loaded.model[name], tensor) for name, tensor in tensors(12).items())


def test_a_tied_head_is_saved_under_both_names(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    checkpoint.save(tmp_path, 1, {"embed": shared, "head": shared}, {}, {})
    loaded = checkpoint.load(tmp_path, 1).model
    assert torch.equal(loaded["embed"], shared)
    assert torch.equal(loaded["head"], shared)


def test_the_newest_of_several_is_loaded(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    for step in (9, 100, 20):
        save(tmp_path, step)
    newest = checkpoint.load_newest(tmp_path)
    assert newest is not None
    assert newest.step == 100


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flip", "halve", "remove"])
def test_a_harmed_file_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "step_00000002" / name
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 0x01
        path.write_bytes(content)
    elif harm == "halve":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.step == 1
    warning = capsys.readouterr().err
    # For a damaged manifest, the warning may name the file that no longer matches its entry.
    assert str(tmp_path / "step_00000002") in warning
    if name != "manifest.json":
        assert name in warning
    shutil.rmtree(tmp_path / "step_00000001")
    with refused("no checkpoint under", "verifies"):
        checkpoint.load_newest(tmp_path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES[:3]), st.data())
def test_one_bit_flipped_or_some_bytes_more_or_less_are_found(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    folder = tmp_path / "checkpoints"
    if not folder.exists():
        save(folder, 2)
    path = folder / "step_00000002" / name
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    ways = [flipped, content[:place], content + b"\0", content + b"\n"]
    harmed = data.draw(st.sampled_from(ways))
    try:
        path.write_bytes(harmed)
        with refused("step_00000002", name):
            checkpoint.load(folder, 2)
    finally:
        path.write_bytes(content)
    checkpoint.load(folder, 2)


def test_a_save_that_fails_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with refused("the checkpoint of step 2 needs", by=OSError):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_pruning_drops_what_was_passed_over(tmp_path: Path) -> None:
    """Step 9 did not verify, so the run resumed from step 3 and has now saved step 4."""
    for step in (1, 2, 3, 4, 9):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2, newest=4)
    assert checkpoint.list_steps(tmp_path) == [3, 4]


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
    open_ = Path.open

    def forbidden(path: Path, *words: Any, **named: Any) -> Any:
        if path.name == "optimizer.safetensors" and "00000002" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_(path, *words, **named)

    monkeypatch.setattr(Path, "open", forbidden)
    with refused("step_00000002/optimizer.safetensors", by=PermissionError):
        checkpoint.load_newest(tmp_path)
    assert checkpoint.list_steps(tmp_path) == [1, 2]


def test_who_may_read_the_record_may_read_the_weights(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert len({path.stat().st_mode for path in (tmp_path / "step_00000001").iterdir()}) == 1
