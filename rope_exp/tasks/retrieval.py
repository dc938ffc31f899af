"""Retrieval: predict the values of keys that occurred earlier in random filler.

In "abK7cd?K7ef" the pair K7 is the needle, ?K is the question, and 7 is the answer. The distance is
between the two K, here 5. Distances are uniform over octaves from 4 on, and within an octave; the
longest are below half a row, and above a quarter of it.

A row has eight needles with different keys and a question for each, at any free places: eight
examples with answers of one token, which distract from one another.
"""

import string
from collections.abc import Iterable

import numpy as np

from rope_exp.corpus import TaskSpec
from rope_exp.sections import DataConfig
from rope_exp.tasks._rows import NO_EXAMPLE, Draws, Row, Rows, stack

FILLER = string.ascii_lowercase
KEYS = string.ascii_uppercase
VALUES = string.digits
NUM_PAIRS = 8
NEAREST = 4  # the least distance: a needle, one token of filler, and a question

SPEC = TaskSpec(
    tokens=FILLER + KEYS + VALUES + "?",
    # Another pair's needle and question rule out at most 16 places of a needle and its question:
    # 3 for needle and needle, twice 4 for needle and question, 5 for question and question. A
    # distance below T / 2 leaves more than T / 2 places, and 7 other pairs may take 112 of them.
    least_seq_len=224,
    span="tokens from the needle to its question",
    bins=tuple(NEAREST << octave for octave in range(20)),
)


def rows(data: DataConfig, seed: int, split: str, indices: Iterable[int], seq_len: int) -> Rows:
    """Return rows of filler with needles and questions; a span is a distance in tokens."""
    drawn = [_row(Draws(seed, f"retrieval {split}", index), seq_len) for index in indices]
    return stack(drawn, SPEC.tokens)


def num_octaves(seq_len: int) -> int:
    """Return the octaves of distances in a row; octave o is from 4 * 2^o to below twice that."""
    return (seq_len // (2 * NEAREST)).bit_length() - 1


def _row(draws: Draws, seq_len: int) -> Row:
    width = seq_len + 1
    text = [FILLER[letter] for letter in draws.many_below(len(FILLER), width)]
    keys = draws.order(len(KEYS))[:NUM_PAIRS]
    values = draws.many_below(len(VALUES), NUM_PAIRS)

    is_taken_S = np.zeros(width, dtype=np.bool_)
    example_T = np.full(seq_len, NO_EXAMPLE, dtype=np.int64)
    span_T = np.zeros(seq_len, dtype=np.int64)
    for number in range(NUM_PAIRS):
        nearest = NEAREST << draws.below(num_octaves(seq_len))
        distance = nearest + draws.below(nearest)
        # Draw the place of the needle's key until all places of both pairs are free.
        while True:
            needle = draws.below(width - distance - 1)
            question = needle + distance
            places = [needle, needle + 1, question - 1, question, question + 1]
            if not is_taken_S[places].any():
                break
        is_taken_S[places] = True

        pair = KEYS[keys[number]] + VALUES[values[number]]
        text[needle : needle + 2] = pair
        text[question - 1 : question + 2] = "?" + pair
        # The value is predicted at the question's key.
        example_T[question] = number
        span_T[question] = distance
    return "".join(text), example_T, span_T
