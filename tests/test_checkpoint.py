"""Checkpoints are whole or absent, verified or refused."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rope_exp import checkpoint
from rope_exp.checkpoint import CheckpointError

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"a.weight": torch.randn(5, 3, generator=generator), "b": torch.randn(7, generator=generator)}


def save(folder: Path, step: int) -> None:
    checkpoint.save(folder, step, tensors(step), {"a.weight.exp_avg": torch.ones(5, 3)}, {"order_sha256": f"{step:x}"})


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
    checkpoint.prune(tmp_path, keep=2, newest=4)  # 9 did not verify, and the run went on from 3
    assert checkpoint.list_steps(tmp_path) == [3, 4]


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
