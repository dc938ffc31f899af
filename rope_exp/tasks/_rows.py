"""The toolkit of generated tasks: random numbers, packed rows, and a run's data set.

Step s reads rows (s - 1) B to s B - 1 of split "train" under the data seed, so no row is repeated.
Held-out rows have one fixed seed, so they are the same for every run.

Random numbers are a pure function of (seed, stream, index): the raw words of a Philox counter
generator (Salmon et al. 2011), which numpy keeps stable over its versions. The key is (seed,
stream) and the counter's second word is the index. Real numbers are the same on every machine up to
the last bits of its logarithm and cosine.

Shapes: N rows, T predictions of a row, S = T + 1 tokens, A predicted tokens of all rows, E
examples.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rope_exp.corpus import NO_TARGET, Batch, DataSet, Ints, Reals, TaskSpec
from rope_exp.files import json_sha256
from rope_exp.identity import import_choice
from rope_exp.sections import DataConfig

Bools = NDArray[np.bool_]

# A split beside TRAIN and TEST: examples longer than any of training, in rows of the same length.
# Each split has its own random stream.
LONGER = "longer"

END = ";"
PAD = "_"
NO_EXAMPLE = -1
# A row's text, and for each prediction the number of its example in the row, or NO_EXAMPLE, and the
# example's span.
Row = tuple[str, Ints, Ints]


class AnyRows(Protocol):
    """Rows of a task, which make a batch."""

    @property
    def batch(self) -> Batch: ...


class TaskLeaf(Protocol):
    """A file of tasks/: the specification of a task, and its rows."""

    @property
    def SPEC(self) -> TaskSpec: ...

    def rows(
        self, data: DataConfig, seed: int, split: str, indices: Iterable[int], seq_len: int
    ) -> AnyRows:
        """Return rows of a split, each a pure function of (seed, split, number).

        Args:
            data: the section `data` of a config, with the task's own keys.
            seed: the data seed; that of held-out rows is fixed.
            split: one of the specification's `splits`.
            indices: the numbers of the rows, counted from 0.
            seq_len: T; a row has T + 1 tokens, or T slots.
        """


def task_leaf(kind: str) -> TaskLeaf:
    """Return the file of tasks/ that data.kind names."""
    return cast("TaskLeaf", import_choice("tasks", kind, "data.kind"))


@dataclass(frozen=True)
class Generated(DataSet):
    """The generated data set of a config."""

    data: DataConfig
    seq_len: int

    def rows(self, split: str, indices: Iterable[int], seed: int = 0) -> "AnyRows":
        """Return the task's rows of a split by their numbers, counted from 0."""
        return task_leaf(self.data.kind).rows(self.data, seed, split, indices, self.seq_len)

    def batch(self, split: str, indices: Iterable[int], seed: int = 0) -> Batch:
        """Return the batch of rows of a split."""
        return self.rows(split, indices, seed).batch


def open_task(data: DataConfig, seq_len: int) -> Generated:
    """Open the generated data set of a run."""
    task = task_leaf(data.kind).SPEC
    tokens = list(task.tokens)
    # END also ends a completion.
    end = {"end_id": tokens.index(END)} if END in tokens else {}
    corpus = {"name": data.name, "kind": data.kind, "version": task.version}
    # All but seed and length. A key beside `order` counts if it departs: old hashes stay.
    determines = [data.kind, data.order, task.version, tokens]
    value = getattr(data, task.key, None)
    if task.key != "order" and value != getattr(DataConfig, task.key, None):
        determines.append(value)
    return Generated(
        vocab_size=len(tokens),
        data_sha256=json_sha256(determines),
        corpus={**corpus, "vocabulary": tokens, **end},
        tokenizer_json=_tokenizer(tokens).to_str(),
        num_train_tokens=None,
        data=data,
        seq_len=seq_len,
    )


def _tokenizer(tokens: Sequence[str]) -> Tokenizer:
    """Make the tokenizer with one token per character or per word."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if max(map(len, tokens)) == 1:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Draws:
    """The random numbers of one row, in the order of calls.

    Args:
        seed: the data seed.
        stream: the task and the split, such as "copying train".
        index: the number of the row in that stream.
    """

    def __init__(self, seed: int, stream: str, index: int) -> None:
        digest = hashlib.sha256(stream.encode()).digest()
        key = np.array([seed, int.from_bytes(digest[:8])], dtype=np.uint64)
        counter = np.array([0, int(index), 0, 0], dtype=np.uint64)
        self._bits = np.random.Philox(key=key, counter=counter)

    def below(self, bound: int) -> int:
        """Return a whole number from 0 to bound - 1.

        No number is more than 1 + bound/2^64 times as likely as another.
        """
        return int(self._bits.random_raw()) % bound

    def many_below(self, bound: int, count: int) -> Ints:
        """Return `count` whole numbers as `below` does."""
        return (self._bits.random_raw(count) % np.uint64(bound)).astype(np.int64)

    def order(self, count: int) -> Ints:
        """Return the permutation of 0..count-1 that sorts `count` words."""
        return np.argsort(self._bits.random_raw(count), kind="stable")

    def uniforms(self, count: int) -> Reals:
        """Return `count` numbers in [0, 1), multiples of 2^-53."""
        return (self._bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def exponentials(self, count: int) -> Reals:
        """Return `count` numbers of density exp(-x), by the inverse of 1 - exp(-x)."""
        return -np.log1p(-self.uniforms(count))

    def normals(self, count: int) -> Reals:
        """Return `count` numbers of mean 0 and variance 1 (Box and Muller 1958, the cosines)."""
        radius = np.sqrt(2 * self.exponentials(count))
        return radius * np.cos(2 * np.pi * self.uniforms(count))


class Example(NamedTuple):
    """A question, its answer with END, and its span: a length or distance, which matches go by."""

    question: str
    answer: str
    span: int


@dataclass(frozen=True)
class Rows:
    """Rows as token ids, and for each prediction its example and span, as in `Row`."""

    ids_NS: Ints
    example_NT: Ints
    span_NT: Ints

    @property
    def mask_NT(self) -> Bools:
        """True for the tokens of ids_NS[:, 1:] that are to be predicted."""
        return np.not_equal(self.example_NT, NO_EXAMPLE)

    @property
    def batch(self) -> Batch:
        """The batch that predicts each token of an answer from the tokens before it."""
        target_NT = np.where(self.mask_NT, self.ids_NS[:, 1:], NO_TARGET)
        hashed_NS = np.concatenate([self.ids_NS, self.mask_NT], axis=1)
        return Batch(self.ids_NS[:, :-1], target_NT, hashed_NS)

    def exact_matches(self, is_right_NT: Bools) -> tuple[Ints, Bools]:
        """Return the span of each example, row by row, and whether all of its answer is right."""
        row_A, place_A = np.nonzero(self.mask_NT)
        example_A = row_A * self.mask_NT.shape[1] + self.example_NT[row_A, place_A]
        _, first_E, which_A = np.unique(example_A, return_index=True, return_inverse=True)
        num_wrong_E = np.bincount(which_A[~is_right_NT[row_A, place_A]], minlength=len(first_E))
        return self.span_NT[row_A, place_A][first_E], num_wrong_E == 0


def pack(draws: Draws, draw: Callable[[Draws], Example], longest: int, width: int) -> Row:
    """Fill a row of `width` characters with examples while the longest possible one would fit.

    Otherwise long ones would be rarer than they were drawn. The remaining width is padded before
    and after, in a random proportion, so that the first example also begins anywhere.

    Args:
        draws: the random numbers of the row.
        draw: draws one example from them.
        longest: the characters of the longest possible question with its answer.
        width: T + 1.
    Returns:
        The row's text, and of each of its T predictions the number of the example and its span.
    """
    examples = []
    left = width
    while left >= longest:
        example = draw(draws)
        examples.append(example)
        left -= len(example.question + example.answer)

    text = PAD * draws.below(left + 1)
    example_S = np.full(width, NO_EXAMPLE, dtype=np.int64)
    span_S = np.zeros(width, dtype=np.int64)
    for number, (question, answer, span) in enumerate(examples):
        text += question
        example_S[len(text) : len(text + answer)] = number
        span_S[len(text) : len(text + answer)] = span
        text += answer
    # Prediction t is for character t + 1.
    return text.ljust(width, PAD), example_S[1:], span_S[1:]


def stack(rows: Iterable[Row], tokens: Sequence[str]) -> Rows:
    """Stack rows, with their texts as ids."""
    texts, answers, spans = zip(*rows, strict=True)
    ids = [[tokens.index(token) for token in text] for text in texts]
    return Rows(np.array(ids, dtype=np.int64), np.stack(answers), np.stack(spans))
