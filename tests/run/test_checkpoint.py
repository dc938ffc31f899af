"""Checkpoints are whole or absent, verified or refused."""

import contextlib
import errno
import hashlib
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rope_exp.run import checkpoint
from rope_exp.system.errors import CheckpointError
from rope_exp.system.files import read_json, write_json

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(5, 3, generator=generator),
        "b": torch.randn(7, generator=generator),
    }


def save(folder: Path, step: int) -> None:
    checkpoint.save(
        folder,
        step,
        tensors(step),
        {"a.weight.exp_avg": torch.ones(5, 3)},
        {"order_sha256": f"{step:x}"},
    )


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


def test_no_checkpoint_is_none_and_the_newest_of_several_is_loaded(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    for step in (9, 100, 20):
        save(tmp_path, step)
    newest = checkpoint.load_newest(tmp_path)
    assert newest is not None
    assert newest.step == 100


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_harmed_file_is_named_and_the_checkpoint_before_it_is_used(
    tmp_path: Path, name: str, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "step_00000002" / name
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 0x01
        path.write_bytes(content)
    elif harm == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded is not None
    assert loaded.step == 1
    warning = capsys.readouterr().err
    # A harmed manifest may be blamed itself or through the file whose entry it no longer matches.
    assert str(tmp_path / "step_00000002") in warning
    if name != "manifest.json":
        assert name in warning
    shutil.rmtree(tmp_path / "step_00000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint under .* verifies"):
        checkpoint.load_newest(tmp_path)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(FILES), st.data())
def test_one_bit_flipped_or_one_byte_more_or_less_anywhere_is_found(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    folder = tmp_path / "checkpoints"
    if not folder.exists():
        save(folder, 2)
    path = folder / "step_00000002" / name
    content = path.read_bytes()
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    flipped = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    harmed = data.draw(
        st.sampled_from([flipped, content[:place], content + b"\0", content + b"\n"])
    )
    try:
        path.write_bytes(harmed)
        with pytest.raises(CheckpointError, match="step_00000002") as refused:
            checkpoint.load(folder, 2)
        assert name == "manifest.json" or name in str(refused.value)
    finally:
        path.write_bytes(content)
    checkpoint.load(folder, 2)


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / "step_00000003").rename(tmp_path / "step_00000004")
    with pytest.raises(CheckpointError, match="is of step 3, not 4"):
        checkpoint.load(tmp_path, 4)


def test_a_save_that_fails_leaves_the_old_checkpoint_and_no_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with pytest.raises(OSError, match="the checkpoint of step 2 needs"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_pruning_keeps_the_newest_and_drops_what_was_passed_over(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 9):
        save(tmp_path, step)
    checkpoint.prune(
        tmp_path, keep=2, newest=4, broken=[9]
    )  # 9 did not verify, and the run went on from 3
    assert checkpoint.list_steps(tmp_path) == [3, 4]
    for step in (5, 6, 7):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2, newest=7, broken=[5, 6])
    assert checkpoint.list_steps(tmp_path) == [4, 7]


def test_interrupted_saves_are_cleared(tmp_path: Path) -> None:
    save(tmp_path, 4)
    (tmp_path / ".saving-00000005").mkdir()
    checkpoint.clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000004"]


def test_no_pickle_is_written(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for path in (tmp_path / "step_00000001").iterdir():
        head = path.read_bytes()[:2]
        assert head[:1] != b"\x80", path  # pickle's protocol byte
        assert head != b"PK", path  # torch.save's zip


# -- hostile ----------------------------------------------------------------------------------------------------------


def seal(path: Path) -> None:
    """Make the manifest say that everything is as it was meant."""
    names = [path / name for name in FILES[:3]]
    manifest = {
        name.name: {
            "bytes": name.stat().st_size,
            "sha256": hashlib.sha256(name.read_bytes()).hexdigest(),
        }
        for name in names
    }
    write_json(path / "manifest.json", manifest)


class Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


def header(text: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text.encode()


HOSTILE = {
    "oversized header": header("{}", 2**63 - 1),
    "header past the end": header("{}", 10_000),
    "absurd shape": header(
        '{"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}}'
    )
    + b"abcd",
    "overlap": header(
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    )
    + b"abcd",
    "past the end": header('{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}') + b"abcd",
    "no type": header('{"a":{"dtype":"PICKLE","shape":[1],"data_offsets":[0,4]}}') + b"abcd",
    "deep": header("[" * 100_000),
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", FILES[:2])
def test_a_sealed_checkpoint_that_lies_of_its_tensors_is_refused_by_name(
    tmp_path: Path, name: str, kind: str
) -> None:
    save(tmp_path, 1)
    path = tmp_path / "step_00000001" / name
    path.write_bytes(HOSTILE[kind])
    seal(path.parent)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load(tmp_path, 1)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("write", ["pickle", "torch"])
def test_a_pickle_in_a_files_place_is_refused_and_never_run(
    tmp_path: Path, name: str, write: str
) -> None:
    canary = tmp_path / "canary"
    save(tmp_path, 1)
    path = tmp_path / "step_00000001" / name
    if write == "pickle":
        path.write_bytes(pickle.dumps(Bomb(canary)))
    else:
        torch.save({"a": Bomb(canary)}, path)
    if name != "manifest.json":
        seal(path.parent)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load_newest(tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize("name", FILES)
def test_a_link_or_a_pipe_in_a_files_place_is_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / "here", 1)
    save(tmp_path / "there", 1)
    path = tmp_path / "here" / "step_00000001" / name
    path.unlink()
    path.symlink_to(tmp_path / "there" / "step_00000001" / name)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load(tmp_path / "here", 1)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load(tmp_path / "here", 1)


def test_what_is_no_folder_of_ours_among_checkpoints_is_neither_loaded_nor_followed(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    save(outside, 9)
    folder = tmp_path / "checkpoints"
    save(folder, 1)
    (folder / "step_00000009").symlink_to(outside / "step_00000009")
    (folder / "step_00000005").write_text("a file")
    for name in ("step_-0000001", "step_00000007 ", "step_٠٠٠٠٠٠٠٣", "step_000000010", "..."):
        (folder / name).mkdir()
    assert checkpoint.list_steps(folder) == [1]
    save(folder, 9)  # over the link
    save(folder, 5)  # over the file
    assert checkpoint.list_steps(folder) == [1, 5, 9]
    assert checkpoint.list_steps(outside) == [9]
    assert not (folder / "step_00000009").is_symlink()


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = tmp_path / "step_00000001" / "manifest.json"
    manifest = read_json(path)
    manifest["../../outside"] = manifest["state.json"]
    write_json(path, manifest)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.load(tmp_path, 1)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(FILES), st.data())
def test_whatever_stands_in_a_sealed_file_is_loaded_or_refused_and_nothing_else_is_raised(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    folder = tmp_path / "checkpoints"
    save(folder, 2)
    path = folder / "step_00000002" / name
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content)))
    path.write_bytes(
        content[:place]
        + data.draw(st.binary(max_size=20))
        + content[data.draw(st.integers(0, 40)) + place :]
    )
    if name != "manifest.json":
        seal(path.parent)
    with contextlib.suppress(CheckpointError):
        checkpoint.load(folder, 2)


def test_a_file_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    opened = checkpoint.open_regular

    def forbidden(path: Path) -> Any:
        if path.name == "optimizer.safetensors" and "00000002" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(checkpoint, "open_regular", forbidden)
    with pytest.raises(PermissionError, match=r"step_00000002/optimizer\.safetensors"):
        checkpoint.load_newest(tmp_path)
    assert checkpoint.list_steps(tmp_path) == [1, 2]


def test_who_may_read_the_record_may_read_the_weights(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert len({path.stat().st_mode for path in (tmp_path / "step_00000001").iterdir()}) == 1
