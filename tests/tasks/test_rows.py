"""Tests of random draws, and of packed rows: examples, padding and exact matches."""

import hashlib
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.corpora import philox

from rope_exp.tasks._rows import END, PAD, Draws, Example, pack, stack

WORD = 2**64
words = st.integers(0, WORD - 1)
RARE = 1e-6  # smaller p-values are no accident of a fixed seed


@settings(max_examples=25)
@given(words, st.text(), words)
def test_the_words_are_those_of_the_article(seed: int, stream: str, index: int) -> None:
    """The counter's first word counts blocks of four from 1, and its second is the index."""
    digest = hashlib.sha256(stream.encode()).hexdigest()
    key = [seed, int(digest[:16], 16)]
    expected = philox(key, [1, index, 0, 0]) + philox(key, [2, index, 0, 0])

    draws = Draws(seed, stream, index)
    assert [draws.below(WORD) for _ in range(8)] == expected


@given(words, words, st.integers(1, 10**10), st.integers(1, 20))
def test_one_by_one_or_many_at_once_is_the_same(
    seed: int, index: int, bound: int, count: int
) -> None:
    single = Draws(seed, "a", index)
    many = Draws(seed, "a", index).many_below(bound, count)
    assert many.tolist() == [single.below(bound) for _ in range(count)]
    assert many.dtype == np.int64


def test_real_numbers_follow_their_laws() -> None:
    """Each distribution passes a Kolmogorov-Smirnov test."""
    draws = Draws(0, "real", 0)
    uniforms = draws.uniforms(20_000)
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    assert stats.kstest(uniforms, stats.uniform.cdf).pvalue > RARE
    assert stats.kstest(draws.exponentials(20_000), stats.expon.cdf).pvalue > RARE
    assert stats.kstest(draws.normals(20_000), stats.norm.cdf).pvalue > RARE


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
    for example_T, span_T, is_right_T in zip(
        rows.example_NT, rows.span_NT, is_right_NT, strict=True
    ):
        for number in range(example_T.max() + 1):
            places = np.flatnonzero(example_T == number)
            found.append((span_T[places[0]], all(is_right_T[places])))

    span_E, exact_E = rows.exact_matches(is_right_NT)
    assert list(zip(span_E, exact_E, strict=True)) == found


@given(st.integers(0, 2**32), st.integers(LONGEST, 60))
def test_a_packed_row_holds_examples_and_padding(seed: int, width: int) -> None:
    """The reference reads mask and spans from the text; no further example would have fit."""
    text, example_T, span_T = pack(Draws(seed, "rows", 0), draw_example, LONGEST, width)
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
    assert list(zip(example_T, span_T, strict=True)) == expected


def test_packing_prefers_no_length_and_no_place() -> None:
    """Given a row's padding, each share of it before the first example is equally likely."""
    packed = [pack(Draws(0, "many", n), draw_example, LONGEST, 64) for n in range(3000)]
    rows = stack(packed, "qa" + END + PAD)
    counts = np.bincount(rows.exact_matches(rows.mask_NT)[0])[1:]
    assert len(counts) == 9
    assert stats.chisquare(counts).pvalue > RARE

    is_pad_NS = rows.ids_NS == 3
    left = is_pad_NS.sum(axis=1)
    before = np.argmin(is_pad_NS, axis=1)
    for most in range(1, LONGEST - 1):
        counts = np.bincount(before[left == most], minlength=most + 1)
        assert len(counts) == most + 1
        assert stats.chisquare(counts).pvalue > RARE
