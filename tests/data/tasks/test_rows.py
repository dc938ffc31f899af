"""Tests of the properties that all tasks of a decoder share, and of packing."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rope_exp.rows import END, PAD, Draws, Example, Rows, Task, pack, spell, stack
from rope_exp.tasks.addition import Addition
from rope_exp.tasks.copying import Copying
from rope_exp.tasks.retrieval import Retrieval

TASKS: list[Task] = [
    Addition(seed=3, order="plain"),
    Addition(seed=3, order="reversed"),
    Copying(seed=3),
    Retrieval(seed=3),
]
CASES = [(task, split) for task in TASKS for split in task.splits]
each_case = pytest.mark.parametrize(("task", "split"), CASES, ids=str)
LONGEST = 12
GOLDEN_STARTS = [
    "_______2+62610=62612;9+94718=94727;9611+957=1056",
    "_______2+01626=21626;9+81749=72749;1169+759=8650",
    "____________________ccbdbbbacbbabbacdbccbdcdadcd",
    "eypsneqeyyuroiexcuefjabxsfltlasbhnixxyptsmqafxya",
]


def draw_example(draws: Draws) -> Example:
    """Return a question of 1 to 9 letters, with an answer of 1 or 2 letters and END."""
    asked = 1 + draws.below(9)
    answered = 1 + draws.below(2)
    return Example("q" * asked, "a" * answered + END, span=asked)


@each_case
def test_a_row_is_a_pure_function_of_seed_and_number(task: Task, split: str) -> None:
    """Neither earlier calls, nor the other rows of a call, nor their order matter."""
    whole = task.rows(split, range(9))
    picked = [8, 2, 2, 5]
    some = task.rows(split, np.array(picked))
    np.testing.assert_array_equal(some.ids_NS, whole.ids_NS[picked])
    np.testing.assert_array_equal(some.answer_NT, whole.answer_NT[picked])
    np.testing.assert_array_equal(some.span_NT, whole.span_NT[picked])
    assert len(np.unique(whole.ids_NS, axis=0)) == 9


@pytest.mark.parametrize(("task", "start"), list(zip(TASKS, GOLDEN_STARTS, strict=True)))
def test_the_rows_are_those_that_were_published(task: Task, start: str) -> None:
    """Golden values: with every numpy on every machine, or results could not be compared."""
    (ids_S,) = task.rows("train", [0]).ids_NS
    assert spell(ids_S, task.vocabulary).startswith(start)


@each_case
def test_shapes_types_and_ids(task: Task, split: str) -> None:
    rows = task.rows(split, range(5))
    assert rows.ids_NS.shape == (5, task.seq_len + 1)
    assert rows.mask_NT.shape == rows.span_NT.shape == (5, task.seq_len)
    assert rows.ids_NS.dtype == np.int64
    assert rows.ids_NS.min() >= 0 and rows.ids_NS.max() < len(task.vocabulary)
    assert len(set(task.vocabulary)) == len(task.vocabulary)
    assert rows.mask_NT.any(axis=1).all()
    np.testing.assert_array_equal(rows.span_NT > 0, rows.mask_NT)


# Examples of a text: what is asked, one or several parts, then the answer with its end.
EXAMPLES = {
    Addition: re.compile(r"([0-9]+)\+([0-9]+)=([0-9]+;)"),
    Copying: re.compile(r"([a-d]+)\|([a-d]+;)"),
}


@pytest.mark.parametrize(
    ("task", "split"), [case for case in CASES if type(case[0]) in EXAMPLES], ids=str
)
def test_the_mask_covers_answers_and_their_ends(task: Task, split: str) -> None:
    """The reference parses the text; a span is the length of the longest part that is asked."""
    rows = task.rows(split, range(20))
    for ids_S, answer_T, span_T in zip(rows.ids_NS, rows.answer_NT, rows.span_NT, strict=True):
        expected = np.full(len(ids_S), -1)
        spans = np.zeros(len(ids_S), dtype=np.int64)
        examples = EXAMPLES[type(task)].finditer(spell(ids_S, task.vocabulary))
        for number, match in enumerate(examples):
            *asked, _ = match.groups()
            answer = slice(*match.span(len(asked) + 1))
            expected[answer] = number
            spans[answer] = max(map(len, asked))
        np.testing.assert_array_equal(answer_T, expected[1:])
        np.testing.assert_array_equal(span_T, spans[1:])


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_splits_and_seeds_have_rows_of_their_own(task: Task) -> None:
    other = type(task)(**{**vars(task), "seed": 4})
    seen = [each.rows(split, range(5)).ids_NS for each in (task, other) for split in task.splits]
    together = np.concatenate(seen)
    assert len(np.unique(together, axis=0)) == len(together)


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_exact_matches_agree_with_a_plain_loop(seed: int, share: float) -> None:
    packed = [pack(Draws(seed, "rows", n), draw_example, LONGEST, 40) for n in range(3)]
    rows = stack(packed, "qa" + END + PAD)
    is_right_NT = Draws(seed, "right", 0).uniforms(3 * 39).reshape(3, 39) < share

    found = []
    for answer_T, span_T, is_right_T in zip(rows.answer_NT, rows.span_NT, is_right_NT, strict=True):
        for number in range(answer_T.max() + 1):
            places = np.flatnonzero(answer_T == number)
            found.append((span_T[places[0]], all(is_right_T[places])))

    span_E, exact_E = rows.exact_matches(is_right_NT)
    assert list(zip(span_E, exact_E, strict=True)) == found


@given(st.integers(0, 2**32), st.integers(LONGEST, 60))
def test_a_packed_row_holds_examples_and_padding(seed: int, width: int) -> None:
    """The reference reads mask and spans from the text; no further example would have fit."""
    row = pack(Draws(seed, "rows", 0), draw_example, LONGEST, width)
    assert len(row.text) == width
    body = row.text.strip(PAD)
    assert PAD not in body
    assert width - len(body) < LONGEST

    expected: list[tuple[int, int]] = []
    number = 0
    for before, token in itertools.pairwise(row.text):
        if token in "a" + END:
            question = body.split(END)[number].rstrip("a")
            expected.append((number, len(question)))
        else:
            expected.append((-1, 0))
        number += token == END
        assert (before, token) not in {("a", "q"), ("q", END)}
    assert list(zip(row.answer_T, row.span_T, strict=True)) == expected


def packed_examples(count: int) -> Rows:
    packed = [pack(Draws(0, "many", n), draw_example, LONGEST, 64) for n in range(count)]
    return stack(packed, "qa" + END + PAD)


def test_packing_prefers_no_length() -> None:
    """If examples were added whenever they fit, long ones would be too rare."""
    rows = packed_examples(3000)
    span_E, _ = rows.exact_matches(rows.mask_NT)
    counts = np.bincount(span_E)[1:]
    assert len(counts) == 9
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_row_begins_anywhere() -> None:
    """Given a row's padding, each share of it before the first example is equally likely."""
    rows = packed_examples(3000)
    is_pad_NS = rows.ids_NS == 3
    left = is_pad_NS.sum(axis=1)
    before = np.argmin(is_pad_NS, axis=1)
    for most in range(1, LONGEST - 1):
        counts = np.bincount(before[left == most], minlength=most + 1)
        assert len(counts) == most + 1
        assert stats.chisquare(counts).pvalue > 1e-6
