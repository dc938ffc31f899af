"""Positions and documents of the tokens in a row.

A document begins at an end-of-text token. The token that ends one document begins the next, and
also begins every prompt of a trained model (evaluation/generate.py). The tokens before the first
end-of-text token of a row end a document that began elsewhere; they count as one document, which
begins with the row.

Shapes: B rows, T positions.
"""

import numpy as np

from rope_exp.config.sections import DataConfig
from rope_exp.data.batches import Batch, Ids

# Philox counts in four words. The order of an epoch and hidden tokens (masking.py) use other values
# of the last one.
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


def placed(batch: Batch, data: DataConfig, end_id: int, start_B: Ids | None = None) -> Batch:
    """Return a batch with the positions and documents of its tokens, where these are needed.

    Args:
        data: `reset_positions` begins positions at 0 at each document; `document_mask` limits
            attention to a document.
        end_id: the id of the token that ends a document.
        start_B: added to all positions of a row; None: 0.
    """
    document_BT = documents(batch.ids_BT, end_id)
    if data.reset_positions:
        batch = batch._replace(position_BT=positions(document_BT))
    if data.document_mask:
        batch = batch._replace(document_BT=document_BT)

    if start_B is not None:
        position_BT = batch.position_BT
        if position_BT is None:
            position_BT = np.arange(batch.ids_BT.shape[1])[None]
        batch = batch._replace(position_BT=start_B[:, None] + position_BT)
    return batch
