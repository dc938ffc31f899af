"""Tests of the windows of each step, their order and its hash, and of places within rows."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.corpora import philox, text_of

from rope_exp.batches import (
    chain_sha256,
    epoch_order,
    held_out_rows,
    random_starts,
    training_batch,
    training_ids,
    validation_ids,
)
from rope_exp.config import RunConfig
from rope_exp.corpus import Batch

TOKENS = np.arange(1009, dtype=np.uint16)  # each token is its own index
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
    assert ids.dtype == np.int64
    assert ids.flags.c_contiguous
    alone = [training_ids(TOKENS, seed, [sample], seq_len) for sample in samples]
    np.testing.assert_array_equal(ids, np.concatenate(alone))


@given(seeds, lengths)
def test_every_window_is_read_once_in_each_epoch(seed: int, seq_len: int) -> None:
    num_windows = (len(TOKENS) - 1) // seq_len
    for epoch in range(2):
        samples = range(epoch * num_windows, (epoch + 1) * num_windows)
        windows = starts(training_ids(TOKENS, seed, samples, seq_len), seq_len)
        assert sorted(windows) == list(range(num_windows))


def test_the_order_is_the_one_that_was_published() -> None:
    """The order is this one with every numpy on every machine, or rows could not be compared."""
    assert epoch_order(0, 0, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]


@given(st.integers(1, 300), st.integers(1, 200))
def test_validation_windows_are_spread_and_disjoint(num_sequences: int, seq_len: int) -> None:
    windows = starts(validation_ids(TOKENS, num_sequences, seq_len), seq_len)
    available = (len(TOKENS) - 1) // seq_len
    assert len(windows) == min(num_sequences, available)
    assert windows[0] == 0
    gaps = np.diff([*windows, available])
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


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


# -- places ----------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(1, 10**9), st.integers(0, 2**24))
def test_starts_are_remainders_of_raw_words(seed: int, step: int, most: int) -> None:
    """The last word of the counter is 0 in the order of an epoch, so the two share no words."""
    words = philox([seed, step], [1, 0, 0, 1]) + philox([seed, step], [2, 0, 0, 1])
    start_B = random_starts(seed, step, 6, most)
    assert start_B.dtype == np.int64
    assert start_B.tolist() == [word % (most + 1) for word in words[:6]]


END = 0
# A quarter of the ids end a document, so rows hold many documents, also empty ones.
TEXT = np.random.default_rng(0).integers(0, 4, size=1009).astype(np.uint16)


def placed(step: int, **data: Any) -> Batch:
    """Return the batch of a step on text, with these keys of `data`."""
    train = {"num_steps": 50, "global_batch_size": 4, "seq_len": 16}
    config = RunConfig.from_dict({"seed": 3, "train": train, "data": data})
    return training_batch(config, text_of(TEXT, 9, END), step)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("random_start", [0, 40])
def test_documents_and_positions_are_those_of_a_loop(
    resets: bool, masks: bool, random_start: int
) -> None:
    batch = placed(2, reset_positions=resets, document_mask=masks, random_start=random_start)
    start_B = random_starts(3, 2, 4, random_start)
    for row, ids_T in enumerate(batch.ids_BT):
        document = 0
        position = start_B[row]
        for place, token in enumerate(ids_T):
            if token == END:
                document += 1
                position = start_B[row] if resets else position
            if batch.document_BT is not None:
                assert batch.document_BT[row, place] == document
            if batch.position_BT is not None:
                assert batch.position_BT[row, place] == position
            position += 1
    assert (batch.document_BT is None) == (not masks)
    assert (batch.position_BT is None) == (not (resets or random_start))


def test_the_hash_of_the_order_covers_where_rows_begin() -> None:
    """Resets and document masks follow from the ids, so the hash need not cover them."""
    plain = training_ids(TEXT, 3, range(4, 8), 16)
    assert (placed(2).hashed_BS == plain).all()
    assert (placed(2, reset_positions=True, document_mask=True).hashed_BS == plain).all()
    hashed_BS = placed(2, random_start=40).hashed_BS
    assert (hashed_BS[:, :-1] == plain).all()
    assert (hashed_BS[:, -1] == random_starts(3, 2, 4, 40)).all()


# -- the batches of a run -------------------------------------------------------------------------

STAGES = ((8, 5), (32, 3), (8, 4), (16, 2, 5))
NUM_STEPS = 14
PREPARED = text_of(TOKENS, len(TOKENS), end_id=7)


def make_config(**changes: Any) -> RunConfig:
    train = {"num_steps": NUM_STEPS, "global_batch_size": 8, "seq_len": 16, "stages": STAGES}
    names = {"pe", "data"} & changes.keys()
    sections = {name: changes.pop(name) for name in names}
    values: dict[str, Any] = {"seed": 3, "train": train | changes, **sections}
    return RunConfig.from_dict(values)


def batches(**changes: Any) -> list[Batch]:
    config = make_config(**changes)
    return [training_batch(config, PREPARED, step) for step in range(1, NUM_STEPS + 1)]


def test_a_stage_reads_what_a_run_of_its_length_would() -> None:
    """Sample numbers continue after all stages before it, so none of an epoch is read twice."""
    shapes = [batch.ids_BT.shape for batch in batches()]
    assert shapes == [(16, 8)] * 5 + [(4, 32)] * 3 + [(16, 8)] * 4 + [(5, 16)] * 2
    first = 0
    for batch in batches():
        num_rows, length = batch.ids_BT.shape
        alone = training_ids(TOKENS, 3, range(first, first + num_rows), length)
        assert np.array_equal(batch.hashed_BS, alone)
        first += num_rows


@pytest.mark.parametrize("objective", ["causal", "mlm"])
def test_all_variants_read_the_same(objective: str) -> None:
    """The order of tokens and their masks depend only on the data seed."""
    ours = batches(objective=objective)
    others = batches(objective=objective, pe={"rotate": ["v", "o"]})
    elsewhere = batches(objective=objective, data={"seed": 4})
    for one, same, other in zip(ours, others, elsewhere, strict=True):
        assert np.array_equal(one.hashed_BS, same.hashed_BS)
        assert not np.array_equal(one.hashed_BS, other.hashed_BS)


def test_held_out_rows_are_those_of_every_run() -> None:
    windows_NS = validation_ids(TOKENS, 6, 16)
    causal = held_out_rows(make_config(eval_sequences=6), PREPARED)
    assert np.array_equal(causal.target_BP, windows_NS[:, 1:])

    first = held_out_rows(make_config(eval_sequences=6, objective="mlm"), PREPARED)
    assert first.target_BP.shape == (6, 2)
    others = {"pe": {"rotate": ["v", "o"]}, "data": {"seed": 4}, "stages": None}
    again = held_out_rows(make_config(eval_sequences=6, objective="mlm", **others), PREPARED)
    assert np.array_equal(again.hashed_BS, first.hashed_BS)
