"""The schedules as functions of the step, and what AdamW decays."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.config.compose import run_config
from rope_exp.config.sections import OptimConfig, ScheduleConfig
from rope_exp.model.decoder import Decoder
from rope_exp.training.optim import (
    build_optimizer,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
)

OPTIM = OptimConfig("adamw", 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0)
COSINE = ScheduleConfig("cosine", 0.1, 0.1, None)
WSD = ScheduleConfig("wsd", 0.1, 0.0, 0.2)


def test_warmup_rises_linearly_to_the_peak() -> None:
    for schedule in (COSINE, WSD):
        rates = [learning_rate(step, 100, OPTIM, schedule) for step in range(1, 11)]
        assert rates == pytest.approx([1e-3 * step / 10 for step in range(1, 11)])


def test_cosine_ends_at_its_floor_and_is_half_way_in_the_middle() -> None:
    assert learning_rate(100, 100, OPTIM, COSINE) == pytest.approx(1e-4)
    assert learning_rate(55, 100, OPTIM, COSINE) == pytest.approx((1e-3 + 1e-4) / 2)


def test_wsd_is_flat_and_then_falls_in_a_straight_line_to_its_floor() -> None:
    assert {learning_rate(step, 100, OPTIM, WSD) for step in range(10, 81)} == {1e-3}
    assert learning_rate(90, 100, OPTIM, WSD) == pytest.approx(5e-4)
    assert learning_rate(100, 100, OPTIM, WSD) == 0.0


@given(
    st.integers(1, 1000),
    st.floats(0, 0.5),
    st.floats(0, 1),
    st.one_of(st.none(), st.floats(0, 0.5)),
)
def test_a_rate_is_never_negative_nor_above_the_peak_and_never_rises_after_warmup(
    num_steps: int, warmup: float, floor: float, decay: float | None
) -> None:
    schedule = ScheduleConfig("cosine" if decay is None else "wsd", warmup, floor, decay)
    rates = [learning_rate(step, num_steps, OPTIM, schedule) for step in range(1, num_steps + 1)]
    assert all(0 <= rate <= OPTIM.lr * (1 + 1e-12) for rate in rates)
    after = rates[round(warmup * num_steps) :]
    assert all(later <= earlier + 1e-15 for earlier, later in itertools.pairwise(after))


def small_model() -> Decoder:
    config = run_config(["model.hidden_size=32", "model.intermediate_size=48", "pe.trainable=true"])
    model = Decoder(config.architecture(64))
    model.initialise(0)
    return model


def test_matrices_decay_and_vectors_do_not() -> None:
    model = small_model()
    optimizer = build_optimizer(model.named_parameters(), OPTIM)
    decayed = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert len(decayed) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        vector = "norm" in name or "inv_freq" in name
        assert decayed[id(parameter)] == (0.0 if vector else 0.1), name


def test_a_step_is_adamw_as_published() -> None:
    model = small_model()
    optimizer = build_optimizer(model.named_parameters(), OPTIM)
    weight = model.lm_head.weight
    before = weight.detach().clone().double()
    gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weight.grad = gradient
    optimizer.step()
    # First step: the bias-corrected moments are g and g^2 (Loshchilov and Hutter, algorithm 2).
    expected = before * (1 - 1e-3 * 0.1) - 1e-3 * gradient.double() / (
        gradient.double().abs() + 1e-8
    )
    assert torch.allclose(weight.double(), expected, rtol=0, atol=1e-7)


def test_a_flagged_step_changes_no_weight_and_no_moment() -> None:
    model = small_model()
    optimizer: Any = build_optimizer(model.named_parameters(), OPTIM)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    state = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, names).items()}
    held = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(torch.equal(parameter, held[name]) for name, parameter in model.named_parameters())
    assert all(
        torch.equal(tensor, state[name])
        for name, tensor in optimizer_tensors(optimizer, names).items()
    )


def test_optimizer_state_survives_a_round_trip_by_name() -> None:
    model, twin = small_model(), small_model()
    optimizer, other = (build_optimizer(m.named_parameters(), OPTIM) for m in (model, twin))
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    tensors = optimizer_tensors(optimizer, {p: name for name, p in model.named_parameters()})
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    load_optimizer_tensors(other, {p: name for name, p in twin.named_parameters()}, copies)
    twin.load_state_dict(model.state_dict())
    for m, o in ((model, optimizer), (twin, other)):
        for parameter in m.parameters():
            parameter.grad = torch.ones_like(parameter)
        o.step()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )
