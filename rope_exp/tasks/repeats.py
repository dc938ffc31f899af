"""Repeats, RoPER's own task: a string grows by random letters and by stretches of itself.

In "acgt...ca>gtac..." the letters after ">" repeat a stretch that began anywhere earlier; marks do
not count as letters. The stretch's first letter is given, and the others are predicted.

The format is the authors' (Harik and labml.ai, `copy_repeat` of their public code): 16 letters,
then in turn 1 to 11 random ones, a mark, and a stretch of 16, until the row is full.
"""

from collections.abc import Iterable

import numpy as np

from rope_exp.corpus import TaskSpec
from rope_exp.sections import DataConfig
from rope_exp.tasks._rows import NO_EXAMPLE, Draws, Row, Rows, stack

LETTERS = "acgt"
MARK = ">"
STRETCH = 16
MOST_BETWEEN = 11
# The fewest tokens that always contain the whole first repeat.
FEWEST = STRETCH + MOST_BETWEEN + len(MARK) + STRETCH

SPEC = TaskSpec(
    tokens=LETTERS + MARK,
    least_seq_len=FEWEST,
    span="letters back to the stretch",
    bins=(17, *(16 << octave for octave in range(1, 18))),
)


def rows(data: DataConfig, seed: int, split: str, indices: Iterable[int], seq_len: int) -> Rows:
    """Return rows of one growing string each; an example's span is its distance in letters."""
    drawn = [_row(Draws(seed, f"repeats {split}", index), seq_len + 1) for index in indices]
    return stack(drawn, SPEC.tokens)


def _row(draws: Draws, width: int) -> Row:
    example_S = np.full(width + FEWEST, NO_EXAMPLE, dtype=np.int64)
    span_S = np.zeros(width + FEWEST, dtype=np.int64)

    def random_letters(count: int) -> str:
        return "".join(LETTERS[letter] for letter in draws.many_below(len(LETTERS), count))

    letters = random_letters(STRETCH)
    text = letters
    number = 0
    while len(text) < width:
        between = random_letters(1 + draws.below(MOST_BETWEEN))
        letters += between
        text += between + MARK

        start = draws.below(len(letters) - STRETCH)
        # All letters of the stretch but the first.
        predicted = slice(len(text) + 1, len(text) + STRETCH)
        example_S[predicted] = number
        span_S[predicted] = len(letters) - start
        repeat = letters[start : start + STRETCH]
        letters += repeat
        text += repeat
        number += 1

    # Prediction t is for token t + 1.
    return text[:width], example_S[1:width], span_S[1:width]
