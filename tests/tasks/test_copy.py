"""Tests of copying, whose strings and copies are read back from their tokens."""

from collections import Counter

import pytest
from scipy import stats
from support.corpora import spell

from rope_exp.sections import DataConfig
from rope_exp.tasks.copy import SPEC, rows


@pytest.mark.parametrize(
    ("split", "fewest", "most"), [("train", 1, 32), ("test", 1, 32), ("longer", 33, 64)]
)
def test_copies_are_right_and_lengths_uniform(split: str, fewest: int, most: int) -> None:
    found = rows(DataConfig(kind="copy"), 0, split, range(1000), 256)
    lengths = []
    for ids_S in found.ids_NS:
        for example in spell(ids_S, SPEC.tokens).strip("_").removesuffix(";").split(";"):
            string, copy = example.split("|")
            assert string == copy
            lengths.append(len(string))
    assert found.exact_matches(found.mask_NT)[0].tolist() == lengths
    counts = Counter(lengths)
    assert set(counts) == set(range(fewest, most + 1))
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6
