"""Streams of documents, and the limits that hold for every corpus."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import TEXTS, corpus_of, data_config
from support.refused import refused

from rope_exp.data import documents as documents_module
from rope_exp.data.documents import check_expansion, column_texts


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


def test_a_document_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "MAX_DOCUMENT", 1000)
    corpus = corpus_of(["a b " * 250, "a b " * 251], holdout_fraction=0.5)
    with refused("data.path=memory", "a document of 1,004 characters", "data.sample_by=line"):
        list(corpus.documents("train"))


def test_a_word_that_memory_cannot_encode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "MAX_WORD", 200_000)
    fine = "a" * 60_000 + " " + "b" * 99_000
    assert list(corpus_of([fine], holdout_fraction=0.5).documents("train"))
    corpus = corpus_of(["a" * 250_000], holdout_fraction=0.5)
    with refused("data.path=memory", "250,000 characters on end without a space"):
        list(corpus.documents("train"))


def test_a_small_file_may_not_unpack_to_a_large_one() -> None:
    """What is harmless is allowed however it was packed, and what is large by its own size."""
    path = Path("a.txt")
    check_expansion(path, 1, 64 << 20)
    check_expansion(path, 1 << 20, 200 << 20)
    with refused("data.path=a.txt: unpacks to 209,715,201 bytes or more, over 200 times its size"):
        check_expansion(path, 1 << 20, (200 << 20) + 1)


def test_rows_without_text_are_left_out() -> None:
    table = pa.table({"text": ["a", None, "", "b"]})
    assert list(column_texts([table], data_config(path="x"))) == ["a", "b"]


@pytest.mark.parametrize("values", [[1, 2], [["a"]], [b"a"]])
def test_a_column_of_anything_else_is_refused(values: list[object]) -> None:
    with refused("data.text_column=text: holds", "not text"):
        list(column_texts([pa.table({"text": values})], data_config(path="x")))


def test_a_column_that_is_not_there_is_refused() -> None:
    """A name may hold anything, and the sentence stays one line."""
    table = pa.table({"a\nb": ["a"], "c": ["a"]})
    with refused("data.text_column=text: is no column; there are", "c"):
        list(column_texts([table], data_config(path="x")))
