"""Where the tokens of a row stand, and which of its documents each is of.

A document begins at the end-of-text token: the token that ends one document begins the next, as it
begins every text that a trained model goes on from (evaluation/generate.py). What stands in a row
before the first of them is the end of a document that began elsewhere; it counts as one document,
which begins with the row.

Shapes: B rows, T positions, S columns under the hash of the order of batches.
"""

from dataclasses import dataclass

import numpy as np

from rope_exp.data.batches import Batch, Ids, Source

# Philox counts in four words, and the order of an epoch begins at 0, 0, 0, 0: here it never comes.
_COUNTER = (0, 0, 0, 1)


def documents(ids_BT: Ids, end_id: int) -> Ids:
    """Return the number of each token's document, which rises by 1 where a document begins."""
    number_BT: Ids = (ids_BT == end_id).cumsum(axis=1)
    return number_BT


def positions(document_BT: Ids) -> Ids:
    """Return each token's distance from the first token of its document within the row."""
    place_T = np.arange(document_BT.shape[1])
    begins_BT = np.diff(document_BT, axis=1, prepend=-1) != 0
    first_BT = np.maximum.accumulate(place_T * begins_BT, axis=1)
    return place_T - first_BT


def random_starts(seed: int, step: int, num_rows: int, most: int) -> Ids:
    """Return the first position of each row of a step's global batch, uniform on 0 .. `most`.

    Row b takes raw word b of a Philox counter generator keyed by (seed, step). Its remainder
    favours no position by more than a factor of 1 + most / 2^64.
    """
    key = np.array([seed, step], dtype=np.uint64)
    counter = np.array(_COUNTER, dtype=np.uint64)
    words_B = np.random.Philox(key=key, counter=counter).random_raw(num_rows)
    return (words_B % np.uint64(most + 1)).astype(np.int64)


@dataclass(frozen=True)
class Places:
    """What a run makes of documents, in training and in evaluation alike.

    Attributes:
        end_id: of the token that ends a document.
        resets: whether positions begin at 0 at each document (data.reset_positions).
        masks: whether attention stays within a document (data.document_mask).
    """

    end_id: int
    resets: bool = False
    masks: bool = False

    def placed(self, batch: Batch, start_B: Ids | None = None) -> Batch:
        """Return a batch whose rows are told where their tokens stand, and of what documents.

        Args:
            batch: of which nothing is said yet.
            start_B: added to all positions of a row; None: 0.
        """
        assert batch.position_BT is None
        assert batch.document_BT is None

        document_BT = documents(batch.ids_BT, self.end_id)
        if self.resets:
            batch = batch._replace(position_BT=positions(document_BT))
        if self.masks:
            batch = batch._replace(document_BT=document_BT)

        if start_B is not None:
            position_BT = batch.position_BT
            if position_BT is None:
                position_BT = np.arange(batch.ids_BT.shape[1])[None]
            batch = batch._replace(position_BT=start_B[:, None] + position_BT)
        return batch


@dataclass(frozen=True)
class PlacedBatches:
    """The batches of another source, whose rows are told where their tokens stand.

    Attributes:
        source: says nothing of positions and documents.
        seed: of the order of batches, and of where rows begin.
        batch_size: B, of all ranks together.
        random_start: the last position at which a row may begin; 0: all begin there.
    """

    source: Source
    places: Places
    seed: int
    batch_size: int
    random_start: int = 0

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return the batch of a step; order_sha256 covers where its rows begin, if not all at 0."""
        batch = self.source.batch(step, rows)
        if self.random_start == 0:
            return self.places.placed(batch)

        start_B = random_starts(self.seed, step, self.batch_size, self.random_start)[rows]
        hashed_BS = np.concatenate([batch.hashed_BS, start_B[:, None]], axis=1)
        return self.places.placed(batch._replace(hashed_BS=hashed_BS), start_B)

    def num_targets(self, step: int) -> int:
        """Return how many tokens are to be predicted in all rows of a step's batch."""
        return self.source.num_targets(step)
