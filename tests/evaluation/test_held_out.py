"""Tests that the held-out loss is a mean over all windows, for any micro-batches and ranks."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.models import VOCAB, make_decoder

from rope_exp.batches import next_tokens
from rope_exp.decoder import held_out_loss

MODEL = make_decoder(*"qk")
WINDOWS_NT = np.random.default_rng(0).integers(0, VOCAB, size=(7, 17))
loss_of = partial(held_out_loss, MODEL, next_tokens(WINDOWS_NT))


@pytest.mark.parametrize("micro_batch_size", [1, 3, 7, 100])
def test_it_is_the_mean_of_minus_log_p(micro_batch_size: int) -> None:
    ids = torch.from_numpy(WINDOWS_NT)
    with torch.no_grad():
        log_p = torch.log_softmax(MODEL(ids[:, :-1]).double(), dim=-1)
    expected = -log_p.gather(-1, ids[:, 1:, None]).mean().item()
    assert loss_of(micro_batch_size=micro_batch_size) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("world_size", [1, 2, 3, 10])
def test_ranks_share_the_windows(world_size: int) -> None:
    """Each window counts once; some of ten ranks have none."""
    losses = []
    for rank in range(world_size):
        world = SimpleNamespace(rank=rank, world_size=world_size, sum=lambda nats: nats)
        losses.append(loss_of(micro_batch_size=2, parallel=world))
    assert sum(losses) == pytest.approx(loss_of(micro_batch_size=2), abs=1e-6)
