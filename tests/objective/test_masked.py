"""Tests of held-out losses and probes under train.objective=mlm, against plain loops."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support import probes
from support.models import VOCAB, opinionated
from support.probes import HELD_OUT, LENGTH

from rope_exp.batches import Batch, Ints, next_tokens, validation_ids
from rope_exp.decoder import Decoder, held_out_loss
from rope_exp.objective.mlm import hidden


def make_decoder(*rotate: str, **changes: Any) -> Decoder:
    """Return a bidirectional decoder with a mask token and non-uniform attention."""
    return opinionated(*rotate, vocab_size=VOCAB + 1, causal=False, **changes)


def read(windows_NS: Ints) -> Batch:
    """Return masked rows, as those of a run."""
    plain = next_tokens(windows_NS)
    return hidden(plain, (0, 0), VOCAB)


def nats_by_hand(decoder: Decoder, rows: Batch) -> list[dict[int, float]]:
    """Return -log p of the hidden tokens of each row, by place, from the logits of all tokens."""
    assert rows.place_BP is not None
    with torch.no_grad():
        log_p_BTV = torch.log_softmax(decoder(torch.from_numpy(rows.ids_BT)).double(), dim=-1)
    return [
        {
            place: -float(log_p_TV[place, target])
            for place, target in zip(places, targets, strict=True)
        }
        for log_p_TV, places, targets in zip(log_p_BTV, rows.place_BP, rows.target_BP, strict=True)
    ]


def mean(nats: list[dict[int, float]]) -> float:
    return float(np.mean([list(row.values()) for row in nats]))


@pytest.mark.parametrize("micro_batch_size", [1, 3, 100])
def test_the_held_out_loss_is_of_hidden_tokens(micro_batch_size: int) -> None:
    decoder = make_decoder("q", "k", "v")
    rows = read(validation_ids(HELD_OUT, 7, LENGTH))
    assert rows.target_BP.shape == (7, 2)
    loss = held_out_loss(
        decoder, rows, micro_batch_size=micro_batch_size, device=torch.device("cpu")
    )
    assert loss == pytest.approx(mean(nats_by_hand(decoder, rows)), abs=1e-5)


def test_losses_by_position_are_of_what_is_hidden_there() -> None:
    """Windows are eight training lengths long, and a bin without a hidden token has no loss. The
    loss at a length is that of the windows' beginnings, read alone.
    """
    decoder = make_decoder("q", "k")
    found = probes.ask(decoder, "positions", train={"objective": "mlm"})
    windows_NS = validation_ids(HELD_OUT, 2, 8 * LENGTH)
    by_hand = nats_by_hand(decoder, read(windows_NS))
    for (first, last), loss in zip(itertools.pairwise(found["edges"]), found["loss"], strict=True):
        here = [nats for row in by_hand for place, nats in row.items() if first <= place < last]
        expected = pytest.approx(np.mean(here), abs=1e-5) if here else None
        assert loss == expected

    assert found["lengths"] == [16, 32, 64, 128]
    for length, loss in zip(found["lengths"], found["loss_at_length"], strict=True):
        beginnings = read(windows_NS[:, : length + 1])
        assert loss == pytest.approx(mean(nats_by_hand(decoder, beginnings)), abs=1e-5)
