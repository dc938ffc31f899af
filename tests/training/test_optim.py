"""Tests of weight decay, and of AdamW's arithmetic."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rope_exp.compose import run_config
from rope_exp.decoder import Decoder
from rope_exp.optim.muon import Config as MuonConfig
from rope_exp.sections import OptimConfig
from rope_exp.step import build_optimizer

OPTIM = OptimConfig(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def small_model(*words: str) -> Decoder:
    sizes = ["model.hidden_size=32", "model.intermediate_size=48"]
    config = run_config([*sizes, "pe.trainable=true", *words])
    model = Decoder(config.architecture(64))
    model.initialise(0)
    return model


def update(model: Decoder, optimizer: Any, gradient: Callable[[Tensor], Tensor]) -> None:
    """Update a model once from the gradient that `gradient` returns for each parameter."""
    for parameter in model.parameters():
        parameter.grad = gradient(parameter)
    optimizer.step()


@pytest.mark.parametrize("optim", [OPTIM, MuonConfig(weight_decay=0.1)], ids=["adamw", "muon"])
def test_matrices_decay_and_vectors_do_not(optim: Any) -> None:
    """A token shift is of two dimensions; it moves by AdamW, and does not decay either."""
    model = small_model("model.token_shift=true")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer: Any = build_optimizer(model, optim)
    update(model, optimizer, torch.zeros_like)
    for name, parameter in model.named_parameters():
        vector = name.endswith(("norm.weight", "inv_freq", "token_shift"))
        assert torch.equal(parameter, before[name]) == vector, name
        assert not vector or "exp_avg_sq" in optimizer.state[parameter], name


def test_a_step_is_adamw_as_published() -> None:
    """In step 1 the corrected moments are g and g^2 (Loshchilov and Hutter 2019, algorithm 2)."""
    model = small_model()
    optimizer = build_optimizer(model, OPTIM)
    weight = model.lm_head.weight
    before = weight.detach().clone().double()
    gradient = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    update(model, optimizer, lambda p: gradient if p is weight else torch.zeros_like(p))
    step = 1e-3 * gradient.double() / (gradient.double().abs() + 1e-8)
    assert torch.allclose(weight.double(), before * (1 - 1e-3 * 0.1) - step, rtol=0, atol=1e-7)
