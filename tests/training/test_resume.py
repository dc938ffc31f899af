"""Tests that intact checkpoints of another run are refused."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused import refused
from support.trainers import Make, losses, same, snapshot

from rope_exp import checkpoint
from rope_exp.folder import step_folder
from rope_exp.trainer import Trainer


@pytest.fixture
def finished(make: Make) -> Trainer:
    """Return a run of six steps that is complete except for its result."""
    trainer = make("run")
    assert trainer.train() == "finished"
    (trainer.folder / "result.json").unlink()
    return trainer


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Assert that the block changes no file."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    yield
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("key", ["order_sha256", "config_sha256", "elapsed_s"])
@pytest.mark.parametrize("value", [None, "zz"])
def test_an_incomplete_or_edited_state_is_refused(
    make: Make, finished: Trainer, key: str, value: str | None
) -> None:
    """The checkpoint verifies against its own manifest."""
    folder = finished.folder / "checkpoints"
    saved = checkpoint.load(folder, 6)
    state = saved.state | {key: value}
    if value is None:
        del state[key]
    checkpoint.save(folder, 6, saved.model, saved.optimizer, state)
    with untouched(finished.folder), refused("state.json", key):
        make("run").train()


def test_a_state_saved_within_an_evaluation_is_refused(make: Make, finished: Trainer) -> None:
    """Older versions saved a step whose evaluation was interrupted, without its row."""
    folder = finished.folder / "checkpoints"
    saved = checkpoint.load(folder, 6)
    state = saved.state | {"unrecorded": [2.5, 1.0]}
    checkpoint.save(folder, 6, saved.model, saved.optimizer, state)
    with untouched(finished.folder), refused("step 6", "remove this checkpoint"):
        make("run")


def other_norm(saved: checkpoint.Checkpoint) -> None:
    saved.model["model.norm.weight"] = torch.ones(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: saved.optimizer.popitem(), ["is of another optimizer"]),
        (
            lambda saved: saved.model.pop("model.norm.weight"),
            ["of another model", 'Missing key(s) in state_dict: "model.norm.weight"'],
        ),
        (lambda saved: saved.model.update(extra=torch.ones(1)), ["of another model", '"extra"']),
        (other_norm, ["of another model", "model.norm.weight", "[1]"]),
    ],
    ids=["moments", "missing", "unknown", "shape"],
)
def test_tensors_of_another_run_are_refused(
    make: Make, finished: Trainer, change: Callable[[Any], object], words: list[str]
) -> None:
    """The checkpoint verifies against its own manifest."""
    folder = finished.folder / "checkpoints"
    saved = checkpoint.load(folder, 6)
    change(saved)
    checkpoint.save(folder, 6, saved.model, saved.optimizer, saved.state)
    with untouched(finished.folder), refused(*words):
        make("run").train()


def test_a_checkpoint_of_other_data_is_refused(make: Make, finished: Trainer) -> None:
    with untouched(finished.folder), refused("is of another run: its data_sha256"):
        make("run", data_sha256="0" * 64)


def test_a_run_goes_on_past_a_checkpoint_that_is_broken(make: Make, finished: Trainer) -> None:
    """It resumes from step 4 and ends as before; a valid checkpoint replaces the broken one.

    Leftovers of interrupted saves are cleared.
    """
    broken = step_folder(finished.folder / "checkpoints", 6) / "state.json"
    broken.write_text("{}")
    (broken.parent.parent / ".saving-00000009").mkdir()
    (broken.parent.parent / ".dropped-step_00000001").mkdir()
    again = make("run")
    assert again.step == 4
    assert again.train() == "finished"
    assert losses(again) == losses(finished)
    assert same(snapshot(again), snapshot(finished))
    assert checkpoint.load(again.folder / "checkpoints", 6).step == 6
    left = sorted(path.name for path in (again.folder / "checkpoints").iterdir())
    assert left == ["step_00000004", "step_00000006"]
