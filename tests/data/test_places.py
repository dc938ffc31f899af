"""Tests of the documents and positions of rows, against plain loops, and of random starts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from support.corpora import philox

from rope_exp.batches import (
    Batch,
    documents,
    next_tokens,
    positions,
    random_starts,
    training_ids,
)
from rope_exp.config import RunConfig
from rope_exp.sources import training_batch

END = 0
# A quarter of the ids end a document, so rows hold many documents, also empty ones.
rows = arrays(
    np.int64, st.tuples(st.integers(1, 4), st.integers(1, 30)), elements=st.integers(0, 3)
)
TOKENS = np.random.default_rng(0).integers(0, 9, size=1009).astype(np.uint16)


def by_loop(row_T: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the document and the position of each token of a row, found token by token."""
    of_documents = []
    of_positions = []
    document = 0
    position = 0
    for token in row_T:
        if token == END:
            document += 1
            position = 0
        of_documents.append(document)
        of_positions.append(position)
        position += 1
    return of_documents, of_positions


@given(rows)
def test_documents_and_positions_are_those_of_a_loop(ids_BT: NDArray[np.int64]) -> None:
    document_BT = documents(ids_BT, END)
    expected = [by_loop(row_T) for row_T in ids_BT]
    assert document_BT.tolist() == [of_documents for of_documents, _ in expected]
    assert positions(document_BT).tolist() == [of_positions for _, of_positions in expected]


# -- random starts ---------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(1, 10**9), st.integers(0, 2**24))
def test_starts_are_remainders_of_raw_words(seed: int, step: int, most: int) -> None:
    """The words are the same with every numpy on every machine, so rows can be compared.

    The last word of the counter is 0 in the order of an epoch, so the two share no words.
    """
    words = philox([seed, step], [1, 0, 0, 1]) + philox([seed, step], [2, 0, 0, 1])
    start_B = random_starts(seed, step, 6, most)
    assert start_B.dtype == np.int64
    assert start_B.tolist() == [word % (most + 1) for word in words[:6]]


# -- batches ---------------------------------------------------------------------------------------


def placed(step: int, **data: Any) -> Batch:
    """Return the batch of a step on text, with these keys of `data`."""
    train = {"num_steps": 50, "global_batch_size": 4, "seq_len": 16}
    config = RunConfig.from_dict({"seed": 3, "train": train, "data": data})
    found: Any = SimpleNamespace(tokens={"train": TOKENS}, vocab_size=9, corpus={"end_id": END})
    return training_batch(config, found, step)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("random_start", [0, 40])
def test_each_key_says_what_it_is_for(resets: bool, masks: bool, random_start: int) -> None:
    batch = placed(2, reset_positions=resets, document_mask=masks, random_start=random_start)
    start_B = random_starts(3, 2, 4, random_start)
    for row, ids_T in enumerate(batch.ids_BT):
        of_documents, of_positions = by_loop(ids_T)
        if masks:
            assert batch.document_BT is not None
            assert batch.document_BT[row].tolist() == of_documents
        expected = of_positions if resets else list(range(16))
        if resets or random_start:
            assert batch.position_BT is not None
            assert batch.position_BT[row].tolist() == [start_B[row] + each for each in expected]
    assert (batch.document_BT is None) == (not masks)
    assert (batch.position_BT is None) == (not (resets or random_start))


def test_the_hash_of_the_order_covers_where_rows_begin() -> None:
    """Resets and document masks follow from the ids, so the hash need not cover them."""
    plain = next_tokens(training_ids(TOKENS, 3, range(4, 8), 16)).hashed_BS
    assert (placed(2).hashed_BS == plain).all()
    assert (placed(2, reset_positions=True, document_mask=True).hashed_BS == plain).all()
    hashed_BS = placed(2, random_start=40).hashed_BS
    assert (hashed_BS[:, :-1] == plain).all()
    assert (hashed_BS[:, -1] == random_starts(3, 2, 4, 40)).all()
