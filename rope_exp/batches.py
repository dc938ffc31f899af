"""The batch of each step: a pure function of (tokens, seed, step), for any number of ranks.

Training windows are T + 1 tokens long and start every T tokens, so that each token is predicted
once an epoch (a remainder of fewer than T tokens is left out). Sample n of a run, counted from 0
over all steps and rows, is window n mod N of epoch n div N. An epoch's order sorts the windows by
the raw words of a Philox counter generator keyed by (seed, epoch): numpy keeps raw bit streams
stable over its versions, unlike `Generator.permutation`.

Each stage of a run cuts windows of its own length T. Sample numbers continue from stage to stage,
so stages of the same length read different samples.

Shapes: B global batch, T positions, N windows.
"""

import functools
import hashlib
import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_exp.sections import DataConfig

IdSource = NDArray[np.unsignedinteger]  # 1-D
Ids = NDArray[np.int64]

# Replaces a target where nothing is to be predicted.
NO_TARGET = -1


class Batch(NamedTuple):
    """The rows that a model reads, and their targets.

    Attributes:
        ids_BT: the input tokens.
        target_BP: the target token at each place, or NO_TARGET; or real numbers, [B, P, D].
        hashed_BS: the columns of each row that order_sha256 covers.
        place_BP: the places of the targets in the row; None: all places, so that P = T.
        position_BT: the positions of the tokens; None: 0, 1, 2, ...
        document_BT: the document number of each token, which limits attention; None: no limit.
    """

    ids_BT: Ids
    target_BP: Ids | NDArray[np.float32]
    hashed_BS: Ids
    place_BP: Ids | None = None
    position_BT: NDArray[np.int64] | NDArray[np.float64] | None = None
    document_BT: Ids | None = None

    def rows(self, part: slice) -> "Batch":
        """Return some of the rows."""
        given = {name: each for name, each in self._asdict().items() if each is not None}
        return self._replace(**{name: each[part] for name, each in given.items()})

    @property
    def num_targets(self) -> int:
        """The number of tokens to predict, or of places at which real numbers are predicted."""
        if self.target_BP.ndim == 3:
            return math.prod(self.target_BP.shape[:2])
        return int((self.target_BP != NO_TARGET).sum())


def next_tokens(windows_BS: Ids) -> Batch:
    """Return the batch that predicts every token but the first of windows of T + 1 tokens."""
    return Batch(windows_BS[:, :-1], windows_BS[:, 1:], windows_BS)


def training_ids(
    tokens: IdSource, seed: int, samples: Collection[int], seq_len: int
) -> NDArray[np.int64]:
    """Return the token ids of some samples of a run.

    Args:
        seed: of the order of windows.
        samples: their numbers, counted from 0 over all steps and rows.
    Returns:
        [B, T + 1], contiguous; inputs are [:, :-1], targets [:, 1:].
    Raises:
        ValueError: there is no whole window.
    """
    count = num_windows(tokens, seq_len)
    windows = []
    for sample in samples:
        epoch, place = divmod(sample, count)
        windows.append(int(epoch_order(seed, epoch, count)[place]))
    return _windows(tokens, windows, seq_len)


@functools.lru_cache(maxsize=1)
def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return a permutation of 0..count-1 that depends on nothing but the arguments."""
    key = np.array([seed, epoch], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(count)
    return np.argsort(words, kind="stable")


def num_windows(tokens: IdSource, seq_len: int) -> int:
    """Return N, the number of whole windows of T + 1 tokens at stride T.

    Raises:
        ValueError: there is none.
    """
    count = (len(tokens) - 1) // seq_len
    if count < 1:
        raise ValueError(f"{len(tokens)} tokens hold no window of {seq_len + 1}")
    return count


def validation_ids(tokens: IdSource, num_sequences: int, seq_len: int) -> NDArray[np.int64]:
    """Return fixed windows of the held-out set.

    They are the same for every run and evenly spread, and the first starts at 0. No token is
    predicted twice.

    Returns:
        [N, T + 1], where N is `num_sequences`, or the number of windows if the set holds fewer.
    Raises:
        ValueError: there is no whole window.
    """
    available = num_windows(tokens, seq_len)
    count = min(num_sequences, available)
    return _windows(tokens, np.arange(count) * available // count, seq_len)


def chain_sha256(previous: str, ids: NDArray[np.integer]) -> str:
    """Extend the hash of the order of batches by one batch; resuming needs only the last digest.

    Equation: h_s = sha256(h_{s-1} || x_s), where h_0 is empty and x_s are the ids of step s's
    global batch, row by row, as 32-bit little-endian words.

    Args:
        previous: the hexadecimal digest after the step before; "" before the first.
        ids: of any shape, each below 2^32.
    """
    words = ids.astype("<u4").tobytes()
    return hashlib.sha256(bytes.fromhex(previous) + words).hexdigest()


def _windows(tokens: IdSource, windows: Collection[int], seq_len: int) -> NDArray[np.int64]:
    ids = np.empty((len(windows), seq_len + 1), dtype=np.int64)
    for row, window in enumerate(windows):
        ids[row] = tokens[window * seq_len : (window + 1) * seq_len + 1]
    return ids


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
