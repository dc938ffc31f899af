"""Tests of the objective mlm: its masks, its counts, and held-out losses against plain loops."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import probes
from support.models import VOCAB, make_pe, make_sizes, opinionated, tokens
from support.probes import HELD_OUT, LENGTH
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rope_exp import batches
from rope_exp.batches import chain_sha256, next_tokens, training_ids, validation_ids
from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig
from rope_exp.corpus import Batch, Ints
from rope_exp.costs import checkpoint_bytes, flops_per_token, num_parameters
from rope_exp.decoder import Decoder, held_out_loss
from rope_exp.objective.mlm import hidden, num_predicted
from rope_exp.sections import TrainConfig

MASK = 50
TOKENS = np.arange(4001, dtype=np.uint16) % MASK
# For seed 0, step 1, row 0: six of forty places, and whether each is read as the mask.
GOLDEN_PLACES = [3, 10, 16, 17, 32, 36]
GOLDEN_HIDDEN = [True, False, True, True, True, False]


def plain_batch(step: int, seed: int = 3) -> Batch:
    return next_tokens(training_ids(TOKENS, seed, range(6 * step - 6, 6 * step), 40))


def plain_rows(num_rows: int, length: int, *, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    return next_tokens(generator.integers(0, MASK, size=(num_rows, length + 1)))


@given(st.integers(0, 2**63 - 1), st.integers(1, 10**9), st.integers(1, 60))
def test_of_each_row_so_many_places_are_hidden(seed: int, step: int, length: int) -> None:
    """Places are distinct and ascending, targets are the original tokens, the rest is kept."""
    places = num_predicted(length)
    assert places == max(1, round(0.15 * length))
    plain = plain_rows(4, length, seed=seed)
    found = hidden(plain, (seed, step), MASK)
    assert found.place_BP.shape == (4, places)
    assert found.target_BP.shape == (4, places)
    assert found.num_targets == 4 * places

    assert (np.diff(found.place_BP, axis=1) > 0).all()
    restored_BT = found.ids_BT.copy()
    np.put_along_axis(restored_BT, found.place_BP, found.target_BP, axis=1)
    assert np.array_equal(restored_BT, plain.ids_BT)
    assert set(found.ids_BT.ravel().tolist()) <= set(range(MASK + 1))


@given(st.integers(1, 400), st.integers(1, 6))
def test_masks_of_a_row_depend_on_seed_step_and_row_alone(step: int, count: int) -> None:
    """The rows that follow do not matter."""
    plain = plain_batch(step)
    whole = hidden(plain, (3, step), MASK).rows(slice(count))
    for ours, theirs in zip(hidden(plain.rows(slice(count)), (3, step), MASK), whole, strict=True):
        assert np.array_equal(ours, theirs)


def test_each_place_and_each_reading_has_its_share() -> None:
    """Counts over 20,000 rows lie within five standard deviations of a binomial."""
    count = 20_000
    plain = next_tokens(np.full((count, 21), 7))
    found = hidden(plain, (5, 1), MASK)

    def near(number: int, trials: int, share: float) -> bool:
        deviation = (trials * share * (1 - share)) ** 0.5
        return bool(abs(number - trials * share) < 5 * deviation)

    of_places = np.bincount(found.place_BP.ravel(), minlength=20)
    assert all(near(number, count, 3 / 20) for number in of_places)

    read_N = np.take_along_axis(found.ids_BT, found.place_BP, axis=1).ravel()
    trials = 3 * count
    assert near(int((read_N == MASK).sum()), trials, 0.8)
    # The token is kept, or drawn at random again.
    assert near(int((read_N == 7).sum()), trials, 0.1 + 0.1 / MASK)
    for token in set(range(MASK)) - {7}:
        assert near(int((read_N == token).sum()), trials, 0.1 / MASK)


def test_the_masks_are_those_that_were_published() -> None:
    """The masks are these with every numpy on every machine, or runs could not be compared."""
    found = hidden(plain_rows(1, 40), (0, 1), MASK)
    assert found.place_BP.tolist() == [GOLDEN_PLACES]
    read = np.take_along_axis(found.ids_BT, found.place_BP, axis=1)
    assert (read == MASK).tolist() == [GOLDEN_HIDDEN]


def test_the_hash_of_the_order_covers_masks() -> None:
    """It covers the source's own columns, the tokens read, the places and the targets."""
    plain = plain_batch(1)
    found = hidden(plain, (3, 1), MASK)
    digests = {
        chain_sha256("", found.hashed_BS),
        chain_sha256("", hidden(plain_batch(1, 4), (4, 1), MASK).hashed_BS),
    }
    parts = [plain.hashed_BS, found.ids_BT, found.place_BP, found.target_BP]
    for part in parts:
        assert part is not None
        part[2, 1] += 1
        digests.add(chain_sha256("", np.concatenate(parts, axis=1)))
        part[2, 1] -= 1
    assert len(digests) == 6
    assert chain_sha256("", np.concatenate(parts, axis=1)) in digests


def test_held_out_masks_are_of_no_step_of_training() -> None:
    rows = plain_rows(6, 40)
    first = hidden(rows, batches.HELD_OUT, MASK)
    for key in itertools.product((0, 1), range(1, 50)):
        assert not np.array_equal(hidden(rows, key, MASK).place_BP, first.place_BP)


# -- counts ----------------------------------------------------------------------------------------


def test_the_mask_is_one_id_past_the_tokenizers() -> None:
    causal = run_config([]).architecture(2048)
    mlm = run_config(["train.objective=mlm"]).architecture(2048)
    assert causal.vocab_size == 2048
    assert causal.causal is True
    assert mlm.vocab_size == 2049
    assert mlm.causal is False
    # The mask adds a row to the embedding and one to the head, also in a checkpoint.
    assert num_parameters(mlm) - num_parameters(causal) == 2 * 128
    sizes = [
        checkpoint_bytes(resolve(run_config([*words])), 2048)
        for words in ([], ["train.objective=mlm"])
    ]
    assert sizes[1] - sizes[0] == 12 * 2 * 128


def test_counted_operations_are_those_that_torch_does() -> None:
    """Each query attends to T keys, and the head acts only at the predicted places."""
    length = 32
    train = TrainConfig(seq_len=length, objective="mlm")
    sizes = make_sizes(num_key_value_heads=4)
    config = RunConfig(pe=make_pe("q", "k"), model=sizes, train=train)
    decoder = Decoder(config.architecture(VOCAB))
    ids_BT = tokens(1, length)
    place_BP = torch.arange(config.num_predicted(length))[None]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        decoder(ids_BT, ids_BT[:, : place_BP.shape[1]], place_BP=place_BP).backward()
    # flops_per_token is rounded down to a whole number.
    assert counter.get_total_flops() // length == flops_per_token(config, VOCAB)


# -- held-out losses -------------------------------------------------------------------------------


def make_decoder(*rotate: str, **changes: Any) -> Decoder:
    """Return a bidirectional decoder with a mask token and non-uniform attention."""
    return opinionated(*rotate, vocab_size=VOCAB + 1, causal=False, **changes)


def read(windows_NS: Ints) -> Batch:
    """Return masked rows, as those of a run."""
    plain = next_tokens(windows_NS)
    return hidden(plain, (0, 0), VOCAB)


def nats_by_hand(decoder: Decoder, rows: Batch) -> list[dict[int, float]]:
    """Return -log p of the hidden tokens of each row, by place, from the logits of all tokens."""
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
    loss = held_out_loss(decoder, rows, micro_batch_size=micro_batch_size)
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
