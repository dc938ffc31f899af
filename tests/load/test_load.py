"""Tests of loading a run's model at a step, and its tokenizer, from the run's folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.refused import refused
from support.trainers import build_trainer, finish, same, snapshot

from rope_exp import checkpoint, load_run
from rope_exp.config import RunConfig
from rope_exp.trainer import Trainer


@pytest.fixture
def run(tiny: Callable[..., RunConfig], tmp_path: Path) -> Trainer:
    """Return a run of six steps with checkpoints at 4 and 6, and its tokenizer."""
    return finish(build_trainer(tiny("launch.device=cpu"), tmp_path / "run"))


def test_it_gives_the_newest_checkpoint_ready_to_use(run: Trainer) -> None:
    model, tokenizer = load_run(run.folder)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert same(dict(model.named_parameters()), snapshot(run))
    ids = tokenizer.encode("Document 3. ").ids
    assert tokenizer.decode(ids) == "Document 3. "
    assert model(torch.tensor([ids])).shape == (1, len(ids), 257)


def test_it_gives_an_older_step_where_asked(run: Trainer) -> None:
    older, _ = load_run(run.folder, step=4)
    saved = checkpoint.load(run.folder / "checkpoints", 4)
    assert same(dict(older.named_parameters()), saved.model)
    assert not same(dict(older.named_parameters()), snapshot(run))


def test_what_is_not_there_is_refused(run: Trainer, tmp_path: Path) -> None:
    with refused("holds no step 2; it holds [4, 6]"):
        load_run(run.folder, step=2)
    shutil.rmtree(run.folder / "checkpoints")
    with refused("holds no checkpoint yet"):
        load_run(run.folder)
    with refused(str(tmp_path), "there is no run in this folder"):
        load_run(tmp_path)


def test_weights_of_another_model_are_refused(run: Trainer) -> None:
    """A checkpoint that verifies but does not match config.yaml is not even loaded in part."""
    folder = run.folder / "checkpoints"
    saved = checkpoint.load(folder, 6)
    saved.model["model.norm.weight"] = torch.ones(1)
    checkpoint.save(folder, 6, saved.model, saved.optimizer, saved.state)
    with refused("model.norm.weight", "[1]", "[32]"):
        load_run(run.folder)
