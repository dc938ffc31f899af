"""Tests of steps made from tensors that stay in place, as a CUDA graph needs them.

These run on a CPU without a capture, which tests/gpu tests.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.trainers import Make, Uncaptured, outcomes, same, state, uncaptured

from rope_exp.cuda_graphs import CaptureError
from rope_exp.optimizer import optimizer_tensors
from rope_exp.step import learning_rate

RUNS: list[tuple[str, ...]] = [
    ("pe=qkvo_rope", "train.micro_batch_size=1"),
    ("pe=qkvo_rope", "pe.trainable=true", "pe.trainable_lr=300", "train.micro_batch_size=2"),
    ("pe=vo_rope", "optim=muon"),
    ("pe=qk_rope", "train.objective=mlm"),
    ("pe=learned", "data.random_start=9"),
    ("attn=mla_vo", "pe=qkvo_rope", "model.tie_word_embeddings=true"),
    ("pe=t5", "train.stages=[[8,2],[16,4]]"),
]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_steps_agree_with_those_launched_one_by_one(make: Make, words: tuple[str, ...]) -> None:
    """They differ by the rounding of a learning rate in float32, which Muon's bfloat16 enlarges."""
    plain, static = make("plain", *words), uncaptured(make("static", *words))
    for ours, theirs in zip(outcomes(static), outcomes(plain), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    atol = 5e-5 if "optim=muon" in words else 2e-6
    expected = state(plain)
    assert expected.keys() == state(static).keys()
    for name, tensor in state(static).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=atol, msg=name)


def test_what_a_graph_uses_stays_in_place(make: Make) -> None:
    """Its numbers are those of the step that was made last."""
    trainer = uncaptured(make("run", "pe=qkvo_rope", "pe.trainable=true", "pe.trainable_lr=3"))
    step = trainer.train_step
    parameters = list(trainer.decoder.parameters())

    def places() -> list[int]:
        tensors: list[Any] = [parameter.grad for parameter in parameters]
        tensors += [group["lr"] for group in step.optimizer.param_groups]
        tensors += [*optimizer_tensors(step.optimizer, trainer.decoder).values(), *parameters]
        return [tensor.data_ptr() for tensor in tensors]

    step(1)
    before = places()
    for number in range(2, 6):
        step(number)
        assert places() == before
        rate = learning_rate(number, trainer.config)
        rates = [float(group["lr"]) for group in step.optimizer.param_groups]
        assert rates == pytest.approx([rate, rate, 3 * rate])


def test_a_checkpoint_is_loaded_into_the_same_tensors(make: Make) -> None:
    """A graph goes on from it, though loading drops the parameters' gradients."""
    trainer, again = (uncaptured(make(name)) for name in ("run", "again"))
    assert trainer.train() == "finished"
    assert again.train() == "finished"
    trained = state(trainer)
    assert trainer.load()["step"] == 6
    assert same(trained, state(trainer))
    assert all(parameter.grad is None for parameter in trainer.decoder.parameters())
    for step in (5, 6):
        trainer.train_step(step)
        again.train_step(step)
    assert same(state(again), state(trainer))


def test_a_step_that_cannot_be_captured_is_launched_by_kernels(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on as if nothing had been tried, and its log gives the reason once."""

    class Failing(Uncaptured):
        def _capture(self, launch: Callable[[], None]) -> Callable[[], None]:
            launch()
            raise CaptureError("called a synchronizing CUDA operation")

    plain, failing = make("plain"), uncaptured(make("failing"), Failing)
    assert outcomes(failing) == outcomes(plain)
    assert same(state(plain), state(failing))
    # A CPU makes no graph from the start.
    assert plain.train_step.graphs is None
    assert failing.train_step.graphs is None
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("not as a graph: called a synchronizing CUDA operation")
