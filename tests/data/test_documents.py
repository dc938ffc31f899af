"""Tests of streams of documents: the sides that a hash assigns, and empty documents."""

from hypothesis import given
from hypothesis import strategies as st
from support.corpora import TEXTS, corpus_of


@given(st.lists(st.sampled_from(TEXTS[:30]), max_size=200), st.floats(0.01, 0.99))
def test_equal_documents_never_stand_on_both_sides(texts: list[str], fraction: float) -> None:
    corpus = corpus_of(texts, holdout_fraction=fraction)
    sides: dict[str, set[str]] = {"train": set(), "validation": set()}
    for side, text in corpus.documents("train"):
        sides[side].add(text)
    assert not sides["train"] & sides["validation"]
    assert sides["train"] | sides["validation"] == set(texts)
    assert set(corpus.train_texts()) == sides["train"]


def test_about_the_asked_share_is_held_out_whatever_the_order() -> None:
    texts = [f"text {number}" for number in range(4000)]
    sides = []
    for order in (texts, texts[::-1]):
        found = corpus_of(order, holdout_fraction=0.2).documents("train")
        sides.append({text for side, text in found if side == "validation"})
    assert sides[0] == sides[1]
    assert 700 < len(sides[0]) < 900


def test_empty_documents_are_passed_over() -> None:
    found = corpus_of(["", "a", ""], holdout_fraction=1e-9).documents("train")
    assert list(found) == [("train", "a")]
