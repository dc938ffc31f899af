"""Tests of retrieval, whose needles and questions are found again in the rows."""

import re
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from support.corpora import spell

from rope_exp.sections import DataConfig
from rope_exp.tasks.retrieval import SPEC, num_octaves, rows

DATA = DataConfig(kind="retrieval")


def check(text: str, example_T: NDArray[np.int64], span_T: NDArray[np.int64]) -> None:
    """Assert one needle before each question, filler elsewhere, and a mask only at values."""
    questions = list(re.finditer(r"\?([A-Z])([0-9])", text))
    assert len(questions) == len({question[1] for question in questions}) == 8
    assert len(re.sub("[^a-z]", "", text)) == len(text) - 8 * 5

    spans = np.zeros(len(text), dtype=np.int64)
    for question in questions:
        needle = text.index(question[1])
        assert text[needle : needle + 2] == question[1] + question[2]
        assert text[needle - 1 : needle] != "?"
        assert text.count(question[1]) == 2
        spans[question.start(2)] = question.start(1) - needle
    np.testing.assert_array_equal(span_T, spans[1:])
    assert sorted(example_T[span_T > 0]) == list(range(8))
    assert (example_T[span_T == 0] == -1).all()


@settings(max_examples=30)
@given(st.integers(224, 1100), st.integers(0, 2**63))
def test_rows_of_any_length_have_room_for_all(seq_len: int, index: int) -> None:
    """Even the shortest rows have room, by the inequality beside SPEC."""
    found = rows(DATA, 0, "train", [index], seq_len)
    check(spell(found.ids_NS[0], SPEC.tokens), found.example_NT[0], found.span_NT[0])
    assert found.span_NT.max() < 4 * 2 ** num_octaves(seq_len) <= seq_len / 2


def test_distances_are_uniform_over_octaves_and_questions_over_places() -> None:
    """Rows of 512 have six octaves, from 4 to 255; within the third, distances are uniform.

    At distances of 128 to 255, each quarter of the possible places has as many questions.
    """
    found = rows(DATA, 0, "train", range(600), 512)
    distances = found.span_NT[found.mask_NT]
    assert num_octaves(512) == 6
    assert distances.min() >= 4
    assert distances.max() <= 255
    octaves = np.bincount(np.log2(distances / 4).astype(np.int64))
    assert len(octaves) == 6
    assert stats.chisquare(octaves).pvalue > 1e-6

    third = Counter(distances[(distances >= 16) & (distances < 32)].tolist())
    assert len(third) == 16
    assert stats.chisquare(list(third.values())).pvalue > 1e-6

    _, place = np.nonzero(found.mask_NT)
    far = distances >= 128
    share = (place[far] - distances[far]) / (512 - distances[far])
    quarters = np.bincount((4 * share).astype(np.int64))
    assert len(quarters) == 4
    assert stats.chisquare(quarters).pvalue > 1e-6
