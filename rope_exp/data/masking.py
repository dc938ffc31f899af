"""Masked language modelling: of each row some tokens are hidden, and predicted from both sides.

Of a row's T tokens P = max(1, round(0.15 T)) are predicted. Of these 80 % are read as the mask,
whose id is one past the tokenizer's vocabulary, 10 % as a token drawn from that vocabulary, and
10 % as they are (Devlin et al. 2019). A window's last token, which predicts nothing in it, is left
out: it is the first of the window that follows in the text.

P is exact, where one might draw for each token whether it is predicted. So all rows have one shape:
a step is one graph, and the loss head, the widest product of a step, is computed at P places alone.
The loss of every step is a mean over as many tokens, while the number of independent draws would
deviate by sqrt(0.15 x 0.85 T), a seventh of itself at T = 256. And each place is still chosen with
the same probability, P / T. What is read at a place is a draw of its own.

All of it is a pure function of (data seed, step, row), by raw words of a Philox counter generator,
as the order of windows is, and elsewhere in its counter.

Shapes: B rows, T positions, P places, S columns under the hash, W = T + 2 P words.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_exp.data.batches import Batch, Source

# The last of the counter's four words, which no other stream of a seed has. The second is the row;
# the first counts.
OF_MASKS = 2
# The seed and the step of held-out rows: training has no step 0.
HELD_OUT = (0, 0)

# Of ten places: what the first are read as is the mask, the next are random, the rest as they are.
MASKED = 8
RANDOM = 1


@dataclass(frozen=True)
class Masked:
    """The batches of another source, with hidden tokens in place of next ones.

    Attributes:
        source: what is read of it are `ids_BT`, and where and in what documents they stand.
        seed: of the masks.
        batch_size: B, of all ranks together.
        num_places: P.
        mask_id: the tokenizer's vocabulary size.
    """

    source: Source
    seed: int
    batch_size: int
    num_places: int
    mask_id: int

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return the batch of a step, in which hidden tokens are predicted."""
        numbers = range(self.batch_size)[rows]
        plain = self.source.batch(step, rows)
        return masked(plain, (self.seed, step), numbers, self.num_places, self.mask_id)

    def num_targets(self, step: int) -> int:
        """Return B P."""
        return self.batch_size * self.num_places


def held_out_masked(plain: Batch, num_places: int, mask_id: int) -> Batch:
    """Return held-out rows with the masks that every evaluation of every run has."""
    return masked(plain, HELD_OUT, range(len(plain.ids_BT)), num_places, mask_id)


def masked(
    plain: Batch, key: tuple[int, int], rows: Iterable[int], num_places: int, mask_id: int
) -> Batch:
    """Return rows in which some tokens are hidden and all else is as it was.

    Args:
        plain: whose `ids_BT` are read.
        key: the seed and the step.
        rows: the numbers of the rows in the step's global batch.
        num_places: P, at most T.
        mask_id: the ids below it are the vocabulary.
    Returns:
        A batch whose targets are the original tokens at `place_BP`, ascending, and whose hash
        covers, beside all that it did, what is read, the places and the targets.
    """
    length = plain.ids_BT.shape[1]
    word_BW = np.stack([_words(key, row, length + 2 * num_places) for row in rows])
    word_BT, kind_BP, token_BP = np.split(word_BW, [length, length + num_places], axis=1)

    # The places whose words are the smallest: P of T, each as likely as any other.
    place_BP = np.sort(np.argsort(word_BT, axis=1, kind="stable")[:, :num_places], axis=1)
    target_BP = np.take_along_axis(plain.ids_BT, place_BP, axis=1)

    # By remainders of 64-bit words, whose bias is below 1e-12 for any vocabulary.
    kind_BP = kind_BP % 10
    random_BP = (token_BP % mask_id).astype(np.int64)
    read_BP = np.where(kind_BP < MASKED + RANDOM, random_BP, target_BP)
    read_BP = np.where(kind_BP < MASKED, mask_id, read_BP)

    ids_BT = plain.ids_BT.copy()
    np.put_along_axis(ids_BT, place_BP, read_BP, axis=1)
    return plain._replace(
        ids_BT=ids_BT,
        target_BP=target_BP,
        hashed_BS=np.concatenate([plain.hashed_BS, ids_BT, place_BP, target_BP], axis=1),
        place_BP=place_BP,
    )


def _words(key: tuple[int, int], row: int, count: int) -> NDArray[np.uint64]:
    """Return raw words of the stream that one row has under a key."""
    counter = np.array([0, row, 0, OF_MASKS], dtype=np.uint64)
    generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter)
    return generator.random_raw(count)
