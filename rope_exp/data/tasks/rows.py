"""Rows of tokens with answers to predict, and the packing of examples into rows.

A token is a character of the task's vocabulary, and its id is the character's index there. A
decoder is trained on ids[:, :-1] with targets ids[:, 1:], masked to the answers. If answers differ
in length, their last token is END, so that the end of an answer is predicted, too.

Answers are checked with the true tokens before each prediction (teacher forcing). Greedy decoding
writes an answer exactly if all of its tokens are then the most likely ones, so the exact match is
the same, from a single pass.

Shapes: N rows, S = T + 1 tokens of a row, T predictions of a row; of all rows together, E examples
and A tokens of answers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rope_exp.data.tasks.draws import Draws

# The splits of a task, each with its own random stream.
TRAIN = "train"
TEST = "test"  # examples like those of training
LONGER = "longer"  # examples longer than any of training, in rows of the same length

END = ";"
PAD = "_"

NO_ANSWER = -1


@dataclass(frozen=True)
class Example:
    """A question and its answer.

    Attributes:
        question: the given text.
        answer: the text to predict, including END.
        span: the length or distance of the example, by which exact matches are reported.
    """

    question: str
    answer: str
    span: int


@dataclass(frozen=True)
class Row:
    """One row as text.

    Attributes:
        text: S characters.
        answer_T: for each prediction, the number of its example in the row, from 0; or NO_ANSWER.
        span_T: the span of that example; 0 where there is no answer.
    """

    text: str
    answer_T: NDArray[np.int64]
    span_T: NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows as token ids; the other attributes are those of `Row`, stacked."""

    ids_NS: NDArray[np.int64]
    answer_NT: NDArray[np.int64]
    span_NT: NDArray[np.int64]

    @property
    def mask_NT(self) -> NDArray[np.bool_]:
        """True for the tokens of ids_NS[:, 1:] that are to be predicted."""
        return np.not_equal(self.answer_NT, NO_ANSWER)

    def exact_matches(
        self, is_right_NT: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the span of each example, and whether every token of its answer is right.

        Args:
            is_right_NT: whether the prediction is the token of ids_NS[:, 1:].
        Returns:
            Two arrays of shape [E], in the order of the rows, and of the examples in each.
        """
        row_A, place_A = np.nonzero(self.mask_NT)
        example_A = row_A * self.mask_NT.shape[1] + self.answer_NT[row_A, place_A]
        _, first_E, which_A = np.unique(example_A, return_index=True, return_inverse=True)

        num_wrong_E = np.bincount(which_A[~is_right_NT[row_A, place_A]], minlength=len(first_E))
        return self.span_NT[row_A, place_A][first_E], num_wrong_E == 0


@dataclass(frozen=True)
class Task:
    """Base class of a decoder's tasks.

    Attributes:
        version: of the generator; it changes when the rows change.
        vocabulary: one character per token.
        splits: the splits that the task has.
        seed: of the rows.
        seq_len: T, the same in every split; TASKS of rope_exp/config/tasks.py has the least.
    """

    version: ClassVar[int] = 1
    vocabulary: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = (TRAIN, TEST)

    seed: int
    seq_len: int = 512

    def rows(self, split: str, indices: Iterable[int]) -> Rows:
        """Return the rows of a split with these indices, counted from 0."""
        assert split in self.splits, split
        return stack([self._row(split, index) for index in indices], self.vocabulary)

    def _row(self, split: str, index: int) -> Row:
        raise NotImplementedError


def pack(draws: Draws, draw: Callable[[Draws], Example], longest: int, width: int) -> Row:
    """Fill a row of `width` characters with consecutive examples.

    Another example is added as long as the longest possible one would fit. If examples were added
    whenever they fit, long ones would be rarer than they were drawn. The remaining width is padded
    before and after, in a random proportion, so that the first example also begins anywhere.
    """
    examples = []
    left = width
    while left >= longest:
        example = draw(draws)
        examples.append(example)
        left -= len(example.question) + len(example.answer)

    before = draws.below(left + 1)
    text = PAD * before
    answer_T = np.full(width - 1, NO_ANSWER, dtype=np.int64)
    span_T = np.zeros(width - 1, dtype=np.int64)

    for number, example in enumerate(examples):
        text += example.question
        # Prediction t is for character t + 1.
        places = slice(len(text) - 1, len(text) - 1 + len(example.answer))
        answer_T[places] = number
        span_T[places] = example.span
        text += example.answer

    return Row(text.ljust(width, PAD), answer_T, span_T)


def stack(rows: Sequence[Row], vocabulary: str) -> Rows:
    """Stack rows, and convert their text to ids."""
    place = {token: id_ for id_, token in enumerate(vocabulary)}
    return Rows(
        ids_NS=np.array([[place[token] for token in row.text] for row in rows], dtype=np.int64),
        answer_NT=np.stack([row.answer_T for row in rows]),
        span_NT=np.stack([row.span_T for row in rows]),
    )


def spell(ids: Sequence[int] | NDArray[np.int64], vocabulary: str) -> str:
    """Return the characters of one row's ids."""
    return "".join(vocabulary[id_] for id_ in ids)
