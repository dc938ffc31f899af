"""Tests of the training loop: late reading, stops at any point, and divergence."""

import math

import numpy as np
import pytest
import torch
from support.trainers import Make, losses, same, snapshot

from rope_exp.files import read_json
from rope_exp.folder import list_steps


@pytest.mark.parametrize("log_every", [1, 2, 5])
def test_reading_a_step_late_changes_nothing(make: Make, log_every: int) -> None:
    command = [f"train.log_every={log_every}", "train.num_steps=11"]
    command += ["train.save_every=4", "train.eval_every=7"]
    prompt, late = make("prompt", *command), make("late", *command)
    late.reads_late = True
    assert prompt.train() == "finished"
    assert late.train() == "finished"
    assert losses(prompt) == losses(late)
    assert same(snapshot(prompt), snapshot(late))
    assert prompt.train_step.order_sha256 == late.train_step.order_sha256
    steps = {step for step in range(1, 12) if step % log_every == 0 or step in (7, 11)}
    assert [step for step, _, _ in losses(late)] == sorted(steps)


@pytest.mark.parametrize("reads_late", [False, True])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_bad_gradient_stops_the_run_at_its_step(
    make: Make, reads_late: bool, poison: float
) -> None:
    """The weights, rows and checkpoints are those from before the bad step."""
    command = ["train.log_every=3", "train.save_every=3", "train.num_steps=20"]
    healthy, sick = make("healthy", *command), make("sick", *command)
    for step in range(1, 8):
        healthy.train_step(step)
    sick.reads_late = reads_late
    sick.decoder.lm_head.weight.register_hook(
        lambda gradient: gradient * poison if sick.step == 7 else gradient
    )
    assert sick.train() == "diverged"
    assert same(snapshot(healthy), snapshot(sick))
    result = read_json(sick.folder / "result.json")
    assert result["status"] == "diverged"
    assert result["diverged_step"] == 8
    assert result["steps"] == 7
    assert result["order_sha256"] == healthy.train_step.order_sha256
    assert [step for step, _, _ in losses(sick)] == [3, 6]
    assert list_steps(sick.folder / "checkpoints") == [3, 6]


def test_weights_without_a_finite_held_out_loss_diverged(make: Make) -> None:
    """Weights are spoilt after the last update before an evaluation, so no step's loss shows it."""
    trainer = make("run", "train.eval_every=3")

    def overflow(*_: object) -> None:
        trainer.decoder.lm_head.weight.data.fill_(math.inf)

    def spoil(*_: object) -> None:
        if trainer.step == 5:
            trainer.train_step.optimizer.register_step_post_hook(overflow)

    trainer.decoder.register_forward_pre_hook(spoil)
    assert trainer.train() == "diverged"
    result = read_json(trainer.folder / "result.json")
    assert result["status"] == "diverged"
    assert result["steps"] == 6
    assert result["val/loss"] is None
    assert result["diverged_step"] == 7
    assert [step for step, _, _ in losses(trainer)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("reads_late", [False, True])
def test_a_stop_in_an_evaluation_waits_for_its_end(make: Make, reads_late: bool) -> None:
    """The run saves after the row, and the resumed one ends with the rows of a whole run."""
    command = ["train.num_steps=6", "train.eval_every=3"]
    command += ["train.save_every=100", "train.micro_batch_size=1"]
    whole, stopped = make("whole", *command), make("run", *command)
    assert whole.train() == "finished"
    stopped.reads_late = reads_late

    def ask(*_: object) -> None:
        stopped.stop.requested |= not torch.is_grad_enabled()

    stopped.decoder.register_forward_pre_hook(ask)
    assert stopped.train() == "stopped"
    assert losses(stopped) == losses(whole)[:3]
    assert list_steps(stopped.folder / "checkpoints") == [3]
    resumed = make("run", *command)
    assert resumed.train() == "finished"
    assert losses(whole) == losses(resumed)
    assert same(snapshot(whole), snapshot(resumed))


def test_evaluation_begins_at_0_and_knows_documents(make: Make) -> None:
    """Held-out rows get documents and positions within them, but no random start."""
    words = ("data.random_start=100", "train.seq_len=64")
    started = make("started", *words).held_out_rows
    assert started.position_BT is None
    assert started.document_BT is None

    # Documents of the small corpus are longer than 64 tokens; some rows hold the end of one.
    documents = ("data.reset_positions=true", "data.document_mask=true", "train.eval_sequences=64")
    rows = make("reset", *words, *documents).held_out_rows
    begins_BT = rows.ids_BT == 256
    assert 0 < begins_BT.sum() < begins_BT.size / 16
    assert (rows.position_BT[begins_BT] == 0).all()
    assert (rows.position_BT[:, 0] == 0).all()
    assert (rows.position_BT.max(axis=1) == 63)[~begins_BT.any(axis=1)].all()
    assert np.array_equal(np.diff(rows.document_BT, axis=1) == 1, begins_BT[:, 1:])
