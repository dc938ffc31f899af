"""Masked language modelling: some tokens of each row are hidden and predicted from both sides.

In a row of T tokens, P = max(1, round(0.15 T)) are predicted. 80 % of these are read as the mask,
whose id is one past the tokenizer's vocabulary, 10 % as a token drawn from that vocabulary, and
10 % unchanged (Devlin et al. 2019). A window's last token is left out: it predicts nothing in this
window, and is the first token of the next window in the text.

P is exact, instead of a random draw for each token. So all rows have one shape, and the loss head,
the widest product of a step, is computed only at P places. Each place is still chosen with the same
probability, P / T. All draws are a pure function of (data seed, step, row), from raw words of a
Philox counter generator.

Shapes: B rows, T positions, P places, S hashed columns, W = T + 2 P words.
"""

import numpy as np

from rope_exp.corpus import Batch

NUM_EXTRA_IDS = 1  # the mask is the decoder's only id beyond the tokenizer's


def num_predicted(seq_len: int) -> int:
    """Return P: 15 % of a row, rounded, and at least one token."""
    return max(1, round(0.15 * seq_len))


def hidden(plain: Batch, key: tuple[int, int], mask_id: int) -> Batch:
    """Hide some tokens of all rows of a step.

    Args:
        plain: the batch that predicts every next token.
        key: the data seed and the step, which select the random stream.
        mask_id: the id of the mask; the ids below it are the vocabulary.
    Returns:
        The batch with hidden tokens. Its targets are the original tokens at `place_BP`, ascending.
        Its hashed columns also cover the tokens read, the places and the targets.
    """
    num_rows, length = plain.ids_BT.shape
    num_places = num_predicted(length)
    words = []
    for row in range(num_rows):
        # No other stream of a seed uses the last word 2.
        counter = np.array([0, row, 0, 2], dtype=np.uint64)
        generator = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter)
        words.append(generator.random_raw(length + 2 * num_places))
    word_BW = np.stack(words)
    word_BT, kind_BP, token_BP = np.split(word_BW, [length, length + num_places], axis=1)

    # The P places with the smallest words, so that all T places are equally likely.
    place_BP = np.sort(np.argsort(word_BT, axis=1, kind="stable")[:, :num_places], axis=1)
    target_BP = np.take_along_axis(plain.ids_BT, place_BP, axis=1)

    # The remainders of 64-bit words have a bias below 1e-12 for any vocabulary.
    kind_BP = kind_BP % 10
    random_BP = (token_BP % mask_id).astype(np.int64)
    read_BP = np.select([kind_BP < 8, kind_BP < 9], [mask_id, random_BP], target_BP)
    ids_BT = plain.ids_BT.copy()
    np.put_along_axis(ids_BT, place_BP, read_BP, axis=1)
    return plain._replace(
        ids_BT=ids_BT,
        target_BP=target_BP,
        hashed_BS=np.concatenate([plain.hashed_BS, ids_BT, place_BP, target_BP], axis=1),
        place_BP=place_BP,
    )
