"""Tests of the windows of each step, their order and its hash."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rope_exp.batches import chain_sha256, epoch_order, training_ids, validation_ids

TOKENS = np.arange(1009, dtype=np.uint16)  # each token is its own index
GOLDEN_ORDER = [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]  # for seed 0, epoch 0 and ten windows
seeds = st.integers(0, 2**63 - 1)
lengths = st.integers(1, 200)


def starts(ids: NDArray[np.int64], seq_len: int) -> list[int]:
    """Return the numbers of a batch's windows, which must be whole and in line with the stride."""
    assert (ids == ids[:, :1] + np.arange(seq_len + 1)).all()
    assert (ids[:, 0] % seq_len == 0).all()
    return list(map(int, ids[:, 0] // seq_len))


@given(seeds, lengths, st.lists(st.integers(0, 4000), min_size=1, max_size=9))
def test_ids_are_a_pure_function_of_seed_and_sample(
    seed: int, seq_len: int, samples: list[int]
) -> None:
    """A sample has the same window beside any others."""
    ids = training_ids(TOKENS, seed, samples, seq_len)
    assert ids.shape == (len(samples), seq_len + 1)
    assert ids.dtype == np.int64
    assert ids.flags.c_contiguous
    alone = [training_ids(TOKENS, seed, [sample], seq_len) for sample in reversed(samples)]
    np.testing.assert_array_equal(ids, np.concatenate(alone[::-1]))


@given(seeds, lengths)
def test_every_window_stands_once_in_each_epoch(seed: int, seq_len: int) -> None:
    num_windows = (len(TOKENS) - 1) // seq_len
    for epoch in range(2):
        samples = range(epoch * num_windows, (epoch + 1) * num_windows)
        of_one = starts(training_ids(TOKENS, seed, samples, seq_len), seq_len)
        assert sorted(of_one) == list(range(num_windows))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [epoch_order(seed, epoch, 100).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(order != sorted(order) for order in orders)


def test_the_order_is_the_one_that_was_published() -> None:
    """The order is this one with every numpy on every machine, or rows could not be compared."""
    assert epoch_order(0, 0, 10).tolist() == GOLDEN_ORDER


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


@pytest.mark.parametrize("seq_len", [1009, 5000])
def test_a_stream_without_a_whole_window_is_refused(seq_len: int) -> None:
    """The error shows both numbers."""
    with pytest.raises(ValueError, match=f"1009 tokens hold no window of {seq_len + 1}"):
        training_ids(TOKENS, 0, [0], seq_len)
    with pytest.raises(ValueError, match="1009"):
        validation_ids(TOKENS, 1, seq_len)


def test_the_hash_of_the_order_needs_the_last_digest_only() -> None:
    batches = [training_ids(TOKENS, 1, range(4 * step, 4 * step + 4), 16) for step in range(3)]
    digest = ""
    by_hand = b""
    for ids in batches:
        digest = chain_sha256(digest, ids)
        words = b"".join(int(id_).to_bytes(4, "little") for id_ in ids.ravel())
        by_hand = hashlib.sha256(by_hand + words).digest()
    assert digest == by_hand.hex()
    assert chain_sha256("", batches[0]) != chain_sha256("", batches[1])
