"""Tests of a training step: its rate, optimizer, gradient, stops, bad updates and speed."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import make_decoder, make_sizes
from support.trainers import Make, same, state, take_bad_step, uncaptured

from rope_exp.batches import training_batch
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.optim.muon import Config as MuonConfig
from rope_exp.optimizer import build_optimizer
from rope_exp.schedule.wsd import Config as WsdConfig
from rope_exp.sections import OptimConfig, ScheduleConfig, TrainConfig
from rope_exp.step import EXCLUDED_STEPS, Throughput, learning_rate
from rope_exp.trainer import describe_waiting

PEAK = 1e-3
COSINE = ScheduleConfig(warmup_fraction=0.1, final_fraction=0.1)
WSD = WsdConfig(warmup_fraction=0.1, final_fraction=0.0, decay_fraction=0.2)


@pytest.mark.parametrize(
    ("schedule", "num_steps", "rates"),
    [
        (COSINE, 100, {1: 1e-4, 5: 5e-4, 10: PEAK, 55: (1e-3 + 1e-4) / 2, 100: 1e-4}),
        (WSD, 100, {1: 1e-4, 5: 5e-4, 10: PEAK, 45: PEAK, 80: PEAK, 90: 5e-4, 100: 0.0}),
        (replace(WSD, decay_fraction=0.0), 100, {10: PEAK, 100: PEAK}),
        (replace(WSD, warmup_fraction=0.0), 1, {1: PEAK}),
    ],
)
def test_a_schedule_is_its_closed_form(
    schedule: ScheduleConfig, num_steps: int, rates: dict[int, float]
) -> None:
    """It warms up linearly; a decay of less than one step ends at the peak."""
    train = TrainConfig(num_steps=num_steps)
    config = RunConfig(optim=OptimConfig(lr=PEAK), schedule=schedule, train=train)
    made = {step: learning_rate(step, config) for step in rates}
    assert made == pytest.approx(rates, abs=1e-12)


OPTIM = OptimConfig(lr=PEAK, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


@pytest.mark.parametrize("optim", [OPTIM, MuonConfig(weight_decay=0.1)], ids=["adamw", "muon"])
def test_matrices_decay_and_vectors_do_not(optim: Any) -> None:
    """A token shift is of two dimensions; it moves by AdamW, and does not decay either."""
    model = make_decoder(*"qk", sizes=make_sizes(token_shift=True), trainable=True)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer: Any = build_optimizer(model, optim)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        vector = name.endswith(("norm.weight", "inv_freq", "token_shift"))
        assert torch.equal(parameter, before[name]) == vector, name
        assert not vector or "exp_avg_sq" in optimizer.state[parameter], name


def test_a_step_is_adamw_as_published() -> None:
    """In step 1 the corrected moments are g and g^2 (Loshchilov and Hutter 2019, algorithm 2)."""
    model = make_decoder(*"qk")
    optimizer: Any = build_optimizer(model, OPTIM)
    weight = model.lm_head.weight
    before = weight.detach().clone().double()
    gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.grad = gradient
    optimizer.step()
    step = 1e-3 * gradient.double() / (gradient.double().abs() + 1e-8)
    assert torch.allclose(weight.double(), before * (1 - 1e-3 * 0.1) - step, rtol=0, atol=1e-7)


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
        inputs, num_targets, order_sha256 = step.get_batch(3)
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose one element replaces the time of perf_counter."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def counted(peak: float | None) -> Throughput:
    """Return a Throughput by FLOPs per token of two sequence lengths."""
    steps = Throughput(run_config([]), 256, torch.device("cpu"))
    steps.flops_per_token = {8: 10, 32: 40}
    steps.peak_flops_per_s = peak
    return steps


def take(
    steps: Throughput, clock: list[float], seconds: list[float], tokens: int = 100, length: int = 8
) -> None:
    for step_s in seconds:
        clock[0] += step_s
        steps.step(tokens, length)


def test_a_rate_is_the_median_over_steps_after_warmup(clock: list[float]) -> None:
    steps = counted(None)
    assert steps.speed() == {"tokens_per_s": None, "mfu": None}
    take(steps, clock, [60.0] + [9.0] * EXCLUDED_STEPS + [2.0, 2.0, 50.0, 2.0, 4.0])
    assert steps.speed()["tokens_per_s"] == pytest.approx(50.0)
    assert steps.speed(2) == {"tokens_per_s": pytest.approx(100 / 3), "mfu": None}
    # The step after a pause is not timed.
    steps.pause()
    take(steps, clock, [500.0, 4.0])
    assert steps.speed(2)["tokens_per_s"] == pytest.approx(25.0)


def test_threads_that_wait_are_told(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """In its last steps a run computes for 1.1 s of 2 s; before, it had both threads."""
    cpu = [0.0]
    monkeypatch.setattr("time.process_time", lambda: cpu[0])
    steps = counted(None)
    for seconds in (4.0, 1.1):
        assert steps.busy_threads() is None
        for _ in range(EXCLUDED_STEPS + 1):
            cpu[0] += seconds
            take(steps, clock, [2.0])
    busy = steps.busy_threads()
    assert busy is not None
    assert busy == pytest.approx(0.55)

    told = describe_waiting(busy, 2, spins=True)
    assert "keep 0.6 of 2 threads busy" in told
    assert "repeat the command" in told
    assert "launch.num_threads=1 launch.max_parallel=1 may be faster" in told
    assert "repeat the command" not in describe_waiting(busy, 2, spins=False)
    assert "launch.num_threads=6 launch" in describe_waiting(6.2, 16, spins=True)
    assert describe_waiting(0.3, 1, spins=True) == ""
    assert describe_waiting(1.9, 2, spins=True) == ""


def test_steps_of_several_lengths_count_by_their_own_tokens(clock: list[float]) -> None:
    """Medians are over all six steps, in seconds per token and in seconds per FLOP."""
    steps = counted(2000.0)
    take(steps, clock, [0.0, 2.0, 2.0, 2.0])
    take(steps, clock, [3.0, 3.0, 3.0], tokens=60, length=32)
    assert steps.speed(6) == {
        "tokens_per_s": pytest.approx(2 / (2 / 100 + 3 / 60)),
        "mfu": pytest.approx(2 / (2 / 1000 + 3 / 2400) / 2000),
    }
    assert steps.speed(3)["tokens_per_s"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("NVIDIA H200", "null", 8 * 989e12),
        ("NVIDIA H200", "100.0", 8 * 100e12),
        ("NVIDIA Nobody", "null", None),
        ("NVIDIA Nobody", "100.0", 8 * 100e12),
        ("NVIDIA H200", "0.0", None),
    ],
)
def test_an_unlisted_card_trains_without_mfu_unless_told(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, expected: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    config = run_config(["launch.num_processes=8", f"train.peak_tflops={given}"])
    assert Throughput(config, 256, torch.device("cuda")).peak_flops_per_s == expected
    assert Throughput(config, 256, torch.device("cpu")).peak_flops_per_s is None
