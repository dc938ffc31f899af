"""Repeats, RoPER's own task: a string grows by random letters and by stretches of itself.

In "acgt...ca>gtac..." the letters after ">" repeat a stretch that began anywhere earlier; marks do
not count as letters. The stretch's first letter is given, and the others are predicted. A model
that finds the stretch only needs to read on in it, but at first several fit: about L / 4^k, with L
letters before and k read. So the least expected loss is known: the loss of a predictor that gives
equal weight to all stretches that still fit (`least_nats`).

The format is the authors' (Harik and labml.ai, `copy_repeat` of their public code): four letters,
16 of them at first, then in turn 1 to 11 random ones, a mark, and a stretch of 16. A row is cut off
when it is full.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_exp.data.tasks.draws import Draws
from rope_exp.data.tasks.rows import NO_ANSWER, Row, Rows, Task, spell

LETTERS = "acgt"
MARK = ">"
VOCABULARY = LETTERS + MARK

STRETCH = 16
MOST_BETWEEN = 11
# The fewest tokens that always contain the whole first repeat.
FEWEST = STRETCH + MOST_BETWEEN + len(MARK) + STRETCH


@dataclass(frozen=True)
class Repeats(Task):
    """Rows of one growing string each; an example's span is its distance in letters."""

    vocabulary = VOCABULARY

    def _row(self, split: str, index: int) -> Row:
        draws = Draws(self.seed, f"repeats {split}", index)
        width = self.seq_len + 1
        answer_S = np.full(width + FEWEST, NO_ANSWER, dtype=np.int64)
        span_S = np.zeros(width + FEWEST, dtype=np.int64)

        letters = _random(draws, STRETCH)
        text = letters
        number = 0
        while len(text) < width:
            between = _random(draws, 1 + draws.below(MOST_BETWEEN))
            letters += between
            text += between + MARK

            start = draws.below(len(letters) - STRETCH)
            # All letters of the stretch but the first.
            predicted = slice(len(text) + 1, len(text) + STRETCH)
            answer_S[predicted] = number
            span_S[predicted] = len(letters) - start
            repeat = letters[start : start + STRETCH]
            letters += repeat
            text += repeat
            number += 1

        # Prediction t is for token t + 1.
        return Row(text[:width], answer_S[1:width], span_S[1:width])


def least_nats(rows: Rows) -> NDArray[np.float64]:
    """Return the loss of each predicted letter with equal weights on all stretches that still fit.

    p(letter | read) = the share of starts at which this letter follows, among the starts that match
    the letters read so far; the generator draws each start equally often.

    Returns:
        [A], in nats, in the order of the mask's tokens.
    """
    nats = []
    for ids_S, answer_T in zip(rows.ids_NS, rows.answer_NT, strict=True):
        text = spell(ids_S, VOCABULARY)
        for number in range(answer_T.max() + 1):
            # The predicted tokens are contiguous, and follow the one that is given.
            places = 1 + np.flatnonzero(answer_T == number)
            before = text[: places[0] - 1].replace(MARK, "")
            repeat = text[places[0] - 1 : places[-1] + 1]

            fitting = [s for s in range(len(before) - STRETCH) if before[s] == repeat[0]]
            for k in range(1, len(repeat)):
                num_fitting = len(fitting)
                fitting = [s for s in fitting if before[s + k] == repeat[k]]
                nats.append(np.log(num_fitting / len(fitting)))
    return np.array(nats)


def _random(draws: Draws, count: int) -> str:
    return "".join(LETTERS[letter] for letter in draws.many_below(len(LETTERS), count))
