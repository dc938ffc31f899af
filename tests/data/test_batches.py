"""Tests of the windows of each step, their order and its hash."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rope_exp.data.batches import Batches, chain_sha256, epoch_order, validation_ids

TOKENS = np.arange(1009, dtype=np.uint16)  # each token is its own index
GOLDEN_ORDER = [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]  # for seed 0, epoch 0 and ten windows
Shape = dict[str, int]
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**63 - 1),
        "batch_size": st.integers(1, 9),
        "seq_len": st.integers(1, 200),
    }
)


def starts(ids: NDArray[np.int64], seq_len: int) -> list[int]:
    """Return the numbers of a batch's windows, which must be whole and in line with the stride."""
    assert (ids == ids[:, :1] + np.arange(seq_len + 1)).all()
    assert (ids[:, 0] % seq_len == 0).all()
    return list(map(int, ids[:, 0] // seq_len))


@given(shapes, st.integers(1, 500), st.integers(1, 500))
def test_a_batch_is_a_pure_function_of_seed_and_step(
    shape: Shape, step: int, other_step: int
) -> None:
    fresh = Batches(TOKENS, **shape).ids(step)
    used = Batches(TOKENS, **shape)
    used.ids(other_step)
    np.testing.assert_array_equal(used.ids(step), fresh)
    assert fresh.shape == (shape["batch_size"], shape["seq_len"] + 1)
    assert fresh.dtype == np.int64
    assert fresh.flags.c_contiguous


@given(shapes)
def test_every_window_stands_once_in_each_epoch(shape: Shape) -> None:
    batches = Batches(TOKENS, **shape)
    num_windows = (len(TOKENS) - 1) // shape["seq_len"]
    num_steps = -(-2 * num_windows // shape["batch_size"])
    seen = np.concatenate(
        [starts(batches.ids(step), shape["seq_len"]) for step in range(1, num_steps + 1)]
    )
    for epoch in range(2):
        of_one = seen[epoch * num_windows : (epoch + 1) * num_windows]
        assert sorted(of_one) == list(range(num_windows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [epoch_order(seed, epoch, 100).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(order != sorted(order) for order in orders)


def test_the_order_is_the_one_that_was_published() -> None:
    """The order is this one with every numpy on every machine, or rows could not be compared."""
    assert epoch_order(0, 0, 10).tolist() == GOLDEN_ORDER


def test_the_stream_predicts_each_token_once_an_epoch() -> None:
    batches = Batches(TOKENS, seed=3, batch_size=8, seq_len=63)
    targets = np.concatenate([batches.ids(step)[:, 1:].ravel() for step in (1, 2)])
    assert sorted(targets.tolist()) == list(range(1, 1009))


@given(st.integers(1, 300), st.integers(1, 200))
def test_validation_windows_are_fixed_spread_and_disjoint(num_sequences: int, seq_len: int) -> None:
    ids = validation_ids(TOKENS, num_sequences, seq_len)
    windows = starts(ids, seq_len)
    available = (len(TOKENS) - 1) // seq_len
    assert len(windows) == min(num_sequences, available)
    assert windows[0] == 0
    gaps = np.diff([*windows, available])
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1
    np.testing.assert_array_equal(validation_ids(TOKENS, num_sequences, seq_len), ids)


def test_more_windows_than_there_are_gives_all_of_them() -> None:
    assert len(validation_ids(TOKENS, 10**9, 1008)) == 1


@pytest.mark.parametrize("seq_len", [1009, 5000])
def test_a_stream_without_a_whole_window_is_refused(seq_len: int) -> None:
    """The error shows both numbers."""
    with pytest.raises(ValueError, match=f"1009 tokens hold no window of {seq_len + 1}"):
        Batches(TOKENS, seed=0, batch_size=1, seq_len=seq_len)
    with pytest.raises(ValueError, match="1009"):
        validation_ids(TOKENS, 1, seq_len)


def test_steps_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        Batches(TOKENS, seed=0, batch_size=1, seq_len=8).ids(0)


def test_the_hash_of_the_order_needs_the_last_digest_only() -> None:
    batches = Batches(TOKENS, seed=1, batch_size=4, seq_len=16)
    digest = ""
    by_hand = b""
    for step in range(1, 4):
        ids = batches.ids(step)
        digest = chain_sha256(digest, ids)
        words = b"".join(int(id_).to_bytes(4, "little") for id_ in ids.ravel())
        by_hand = hashlib.sha256(by_hand + words).digest()
    assert digest == by_hand.hex()
    assert chain_sha256("", batches.ids(1)) != chain_sha256("", batches.ids(2))
