"""Tests of repeats, whose strings and repeated stretches are read back from their tokens."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats
from support.corpora import spell

from rope_exp.sections import DataConfig
from rope_exp.tasks import repeats as task
from rope_exp.tasks._rows import Rows


def rows_of(split: str, count: int) -> Rows:
    return task.rows(DataConfig(kind="repeats"), 0, split, range(count), 512)


def texts(rows: Rows) -> list[str]:
    return [spell(ids_S, task.SPEC.tokens) for ids_S in rows.ids_NS]


def repeats(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield each stretch's place in a text, the letters before it, those between, and itself."""
    begin = 16
    for mark in re.finditer(">", text):
        stretch = text[mark.end() : mark.end() + 16]
        yield mark.end(), text[: mark.start()].replace(">", ""), text[begin : mark.start()], stretch
        begin = mark.end() + 16


@pytest.mark.parametrize("split", task.SPEC.splits)
def test_what_stands_behind_a_mark_stood_before(split: str) -> None:
    """The first letter is given and the others are predicted; the span is the distance back."""
    rows = rows_of(split, 30)
    for text, example_T, span_T in zip(texts(rows), rows.example_NT, rows.span_NT, strict=True):
        expected_S = np.full(len(text), -1)
        for number, (place, before, _, stretch) in enumerate(repeats(text)):
            expected_S[place + 1 : place + 16] = number
            if len(stretch) > 1:
                start = len(before) - span_T[place]
                assert before[start : start + len(stretch)] == stretch
        np.testing.assert_array_equal(example_T, expected_S[1:])
        assert ((span_T > 16) == (example_T >= 0)).all()


def test_stretches_begin_anywhere_and_what_lies_between_varies() -> None:
    """Both are uniform; a start is measured as a share of the way to the last possible one."""
    rows = rows_of("train", 300)
    lengths: Counter[int] = Counter()
    shares = []
    for text, span_T in zip(texts(rows), rows.span_NT, strict=True):
        for place, before, between, stretch in repeats(text):
            lengths[len(between)] += 1
            if len(stretch) > 1 and len(before) > 200:
                shares.append((len(before) - span_T[place]) / (len(before) - 16))
    assert set(lengths) == set(range(1, 12))
    # Long ones are rarer at the end of a row.
    assert stats.chisquare(list(lengths.values())).pvalue > 1e-6
    assert stats.kstest(shares, "uniform").pvalue > 1e-6
