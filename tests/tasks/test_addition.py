"""Tests of addition, whose sums are read back from their tokens."""

import re
from collections import Counter
from typing import Any

import pytest
from scipy import stats
from support.corpora import spell

from rope_exp.sections import DataConfig
from rope_exp.tasks.addition import SPEC, is_held_out, rows

NUMBER = re.compile("0|[1-9][0-9]*")


def sums(split: str, count: int, order: Any = "plain", seed: int = 0) -> list[tuple[str, str, str]]:
    """Return the operands and the sum of each example, as numbers are usually written."""
    found = []
    step = 1 if order == "plain" else -1
    packed = rows(DataConfig(kind="addition", order=order), seed, split, range(count), 256)
    for ids_S in packed.ids_NS:
        for example in spell(ids_S, SPEC.tokens).strip("_").removesuffix(";").split(";"):
            operands, total = example.split("=")
            a, b = operands.split("+")
            found.append((a[::step], b[::step], total[::step]))
    spans = [max(len(a), len(b)) for a, b, _ in found]
    assert packed.exact_matches(packed.mask_NT)[0].tolist() == spans
    return found


@pytest.mark.parametrize("order", ["plain", "reversed"])
@pytest.mark.parametrize("split", SPEC.splits)
def test_sums_are_right(order: str, split: str) -> None:
    for a, b, total in sums(split, 50, order):
        assert int(a) + int(b) == int(total)
        assert all(NUMBER.fullmatch(number) for number in (a, b, total))


def test_no_pair_is_trained_and_tested() -> None:
    """Only pairs of one-digit numbers are shared, in either order and over two seeds."""
    trained = {frozenset((a, b)) for a, b, _ in sums("train", 600)}
    tested = {frozenset((a, b)) for a, b, _ in sums("test", 100)}
    tested |= {frozenset((a, b)) for a, b, _ in sums("test", 100, seed=1)}

    shared = trained & tested
    assert shared
    assert all(len(number) == 1 for pair in shared for number in pair)


def test_a_hash_holds_out_an_eighth() -> None:
    """The rule is symmetric, and holds out 1/8 of all pairs below 600 and of short ones."""
    assert all(is_held_out(a, b) == is_held_out(b, a) for a in range(40) for b in range(40))
    many = [is_held_out(a, b) for a in range(600) for b in range(a, 600)]
    small = [is_held_out(a, b) for a in range(10) for b in range(10, 100)]
    for each in (many, small):
        assert stats.binomtest(sum(each), len(each), 1 / 8).pvalue > 1e-6


@pytest.mark.parametrize(("split", "digits"), [("train", 6), ("test", 6), ("longer", 4)])
def test_lengths_are_uniform_and_independent(split: str, digits: int) -> None:
    pairs = Counter((len(a), len(b)) for a, b, _ in sums(split, 150))
    least = 7 if split == "longer" else 1
    assert min(pairs) == (least, least)
    assert max(pairs) == (least + digits - 1, least + digits - 1)
    assert len(pairs) == digits**2
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-6
