"""Tests of one training step: its gradient, stops between micro-batches, and bad updates."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.trainers import Make, same, state, take_bad_step, uncaptured

from rope_exp.batches import training_batch

# Steps launched kernel by kernel, and steps from tensors that stay in place, as in a CUDA graph.
PLACED = pytest.mark.parametrize("place", [lambda trainer: trainer, uncaptured])


@PLACED
def test_a_stop_between_micro_batches_leaves_no_trace(make: Make, place: Any) -> None:
    whole, stopped = (place(make(name, "train.micro_batch_size=1")) for name in ("whole", "part"))
    for step in (1, 2):
        whole.train_step(step)
        stopped.stop.requested = True
        assert stopped.train_step(step) is None
        stopped.stop.requested = False
        stopped.train_step(step)
    assert same(state(whole), state(stopped))
    assert whole.train_step.order_sha256 == stopped.train_step.order_sha256


def test_accumulated_gradients_are_those_of_the_whole_batch(make: Make) -> None:
    """AdamW's first moment after step 1 is a tenth of the gradient."""
    whole, *parts = (
        make(f"micro{micro}", f"train.micro_batch_size={micro}", "optim.grad_clip=1000")
        for micro in (4, 2, 1)
    )
    for trainer in (whole, *parts):
        trainer.train_step(1)
    for part in parts:
        for name, moment in state(part).items():
            if name.endswith("exp_avg"):
                torch.testing.assert_close(moment, state(whole)[name], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("words", [(), ("train.objective=mlm",), ("data.random_start=9",)])
def test_ranks_share_a_batch_in_equal_parts(make: Make, words: tuple[str, ...]) -> None:
    """The rows of all ranks are the global batch, and each rank divides by all targets."""
    step = make("run", *words).train_step
    whole = training_batch(step.config, step.data, 3)
    cpu = torch.device("cpu")
    parts = []
    for rank in (0, 1):
        world: Any = SimpleNamespace(rank=rank, world_size=2, is_main=rank == 0, device=cpu)
        step.parallel = world
        inputs, num_targets, order_sha256 = step._get_batch(3)
        assert num_targets == whole.num_targets
        assert bool(order_sha256) == (rank == 0)
        parts.append(inputs)
    assert torch.cat([part.ids_BT for part in parts]).tolist() == whole.ids_BT.tolist()
    assert torch.cat([part.target_BP for part in parts]).tolist() == whole.target_BP.tolist()


def test_the_loss_is_the_mean_of_minus_log_p(make: Make) -> None:
    trainer = make("run", "train.micro_batch_size=2")
    ids = torch.from_numpy(training_batch(trainer.config, trainer.data, 1).hashed_BS)
    with torch.no_grad():
        log_p = torch.log_softmax(trainer.decoder(ids[:, :-1]).double(), dim=-1)
    expected = -log_p.gather(-1, ids[:, 1:, None]).mean().item()
    started = trainer.train_step(1)
    assert started is not None
    assert started().loss == pytest.approx(expected, abs=1e-6)


@PLACED
@pytest.mark.parametrize("optim", ["adamw", "muon"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_after_a_bad_step_no_update_changes_a_weight(
    make: Make, place: Any, optim: str, poison: float
) -> None:
    """The device skips a bad update and all later ones, so reading late lets none through.

    Every outcome from then on names the first bad step, and has the order before its own step.
    """
    trainer = place(make("run", f"optim={optim}"))
    trainer.train_step(1)
    before, order = state(trainer), trainer.train_step.order_sha256
    bad, later = take_bad_step(trainer, poison)
    assert same(before, state(trainer))
    assert [outcome.first_bad_step for outcome in (bad, later)] == [2, 2]
    assert bad.order_before == order
    assert math.isfinite(later.grad_norm)
