"""Tests of learned frequencies: how often they cross 0 in training is counted."""

from typing import Any

import pytest
import torch
from support.models import make_decoder, make_sizes

from rope_exp.optim.muon import Config as MuonConfig
from rope_exp.optimizer import build_optimizer, optimizer_tensors
from rope_exp.sections import OptimConfig


@pytest.mark.parametrize("optim", [OptimConfig(lr=0.3), MuonConfig(lr=0.3)], ids=["adamw", "muon"])
def test_crossings_are_counted_one_by_one(optim: Any) -> None:
    """The reference compares signs before and after each update, some of which are skipped.

    At this learning rate, most frequencies cross 0.
    """
    sizes = make_sizes(num_hidden_layers=6)
    model = make_decoder(*"qkvo", sizes=sizes, trainable=True, trainable_scope="head")
    optimizer: Any = build_optimizer(model, optim)
    rotary: Any = model.model.rotary_emb
    generator = torch.Generator().manual_seed(0)

    learned = {pair: rotary.get_parameter(name) for pair, name in rotary.learned.items()}
    counted = {pair: torch.zeros(theta.shape, dtype=torch.int64) for pair, theta in learned.items()}
    for step in range(12):
        were_below = {pair: theta < 0 for pair, theta in learned.items()}
        optimizer.found_inf = torch.tensor(float(step % 5 == 4))
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        for pair, theta in learned.items():
            counted[pair] += were_below[pair] != (theta < 0)
    torch.testing.assert_close(rotary.crossings, counted)
    assert min(int(count.sum()) for count in counted.values()) > 20


def test_what_cannot_cross_is_not_counted() -> None:
    """With `log`, the parameter is 0 at theta's initial value, so its sign means nothing."""
    model = make_decoder(*"qk", trainable="log")
    optimizer = build_optimizer(model, OptimConfig())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert model.model.rotary_emb.crossings == {}
    assert not any(name.endswith("crossings") for name in optimizer_tensors(optimizer, model))
