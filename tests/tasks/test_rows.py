"""Tests of packed rows: their examples, padding and exact matches."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rope_exp.tasks._rows import END, PAD, Draws, Example, pack, stack

LONGEST = 12


def draw_example(draws: Draws) -> Example:
    """Return a question of 1 to 9 letters, with an answer of 1 or 2 letters and END."""
    asked = 1 + draws.below(9)
    answered = 1 + draws.below(2)
    return Example("q" * asked, "a" * answered + END, span=asked)


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
    text, answer_T, span_T = pack(Draws(seed, "rows", 0), draw_example, LONGEST, width)
    assert len(text) == width
    body = text.strip(PAD)
    assert PAD not in body
    assert width - len(body) < LONGEST

    expected: list[tuple[int, int]] = []
    number = 0
    for before, token in itertools.pairwise(text):
        if token in "a" + END:
            question = body.split(END)[number].rstrip("a")
            expected.append((number, len(question)))
        else:
            expected.append((-1, 0))
        number += token == END
        assert (before, token) not in {("a", "q"), ("q", END)}
    assert list(zip(answer_T, span_T, strict=True)) == expected


def test_packing_prefers_no_length_and_no_place() -> None:
    """Given a row's padding, each share of it before the first example is equally likely."""
    packed = [pack(Draws(0, "many", n), draw_example, LONGEST, 64) for n in range(3000)]
    rows = stack(packed, "qa" + END + PAD)
    counts = np.bincount(rows.exact_matches(rows.mask_NT)[0])[1:]
    assert len(counts) == 9
    assert stats.chisquare(counts).pvalue > 1e-6

    is_pad_NS = rows.ids_NS == 3
    left = is_pad_NS.sum(axis=1)
    before = np.argmin(is_pad_NS, axis=1)
    for most in range(1, LONGEST - 1):
        counts = np.bincount(before[left == most], minlength=most + 1)
        assert len(counts) == most + 1
        assert stats.chisquare(counts).pvalue > 1e-6
