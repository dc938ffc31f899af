"""Tests of copying, whose strings and copies are read back from their tokens."""

from collections import Counter

import pytest
from scipy import stats
from support.corpora import spell

from rope_exp.sections import DataConfig
from rope_exp.tasks.copy import FACTS, rows

LENGTHS = {"train": (1, 32), "test": (1, 32), "longer": (33, 64)}
each_split = pytest.mark.parametrize("split", FACTS.splits)


def strings(split: str, count: int) -> list[str]:
    found = []
    for ids_S in rows(DataConfig(kind="copy"), 0, split, range(count), 256).ids_NS:
        for example in spell(ids_S, FACTS.tokens).strip("_").removesuffix(";").split(";"):
            string, copy = example.split("|")
            assert string == copy
            found.append(string)
    return found


@each_split
def test_copies_are_right_and_lengths_uniform(split: str) -> None:
    fewest, most = LENGTHS[split]
    lengths = Counter(map(len, strings(split, 1000)))
    assert set(lengths) == set(range(fewest, most + 1))
    assert stats.chisquare(list(lengths.values())).pvalue > 1e-6
