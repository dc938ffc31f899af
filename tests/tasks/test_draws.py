"""Tests of random draws, pure functions of (seed, stream, index), and their distributions."""

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.corpora import philox

from rope_exp.tasks._rows import Draws

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
    assert uniforms.min() >= 0 and uniforms.max() < 1
    assert stats.kstest(uniforms, stats.uniform.cdf).pvalue > RARE
    assert stats.kstest(draws.exponentials(20_000), stats.expon.cdf).pvalue > RARE
    assert stats.kstest(draws.normals(20_000), stats.norm.cdf).pvalue > RARE
