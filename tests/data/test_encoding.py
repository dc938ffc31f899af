"""Tests of the token files of a prepared corpus."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.corpora import BPE, BYTES, TEXTS, data_config, write_parquet
from tokenizers import Tokenizer

from rope_exp import prepare as encoding_module
from rope_exp.corpora import PIECE_CHARS
from rope_exp.prepare import prepare
from rope_exp.sections import TokenizerConfig


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_tokens_equal_those_of_the_plain_library(
    tmp_path: Path, tokenizer: TokenizerConfig
) -> None:
    write_parquet(tmp_path / "data" / "train-00000.parquet", TEXTS)
    write_parquet(tmp_path / "data" / "validation.parquet", TEXTS[:20])
    write_parquet(tmp_path / "data" / "test.parquet", ["never read"] * 20)
    prepared = prepare(data_config(path=tmp_path / "data"), tokenizer, seq_len=64)

    plain = Tokenizer.from_file(str(prepared.tokenizer_file))
    end_id = plain.token_to_id("<|endoftext|>")
    for side, texts in (("train", TEXTS), ("validation", TEXTS[:20])):
        tokens = prepared.tokens[side][:]
        expected = []
        for text in texts:
            expected += [*plain.encode(text).ids, end_id]
        assert tokens.dtype == np.uint16
        assert tokens.tolist() == expected
        assert prepared.corpus["documents"][side] == len(texts)
        assert prepared.corpus["text_bytes"][side] == sum(len(text.encode()) for text in texts)
        assert prepared.corpus["tokens"][side] == len(tokens)
    assert prepared.vocab_size == plain.get_vocab_size()


@pytest.mark.parametrize("max_tokens", [200, 500, 3000])
def test_training_stops_at_the_limit_exactly(tmp_path: Path, max_tokens: int) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    data = data_config(path=path, holdout_fraction=0.5)
    whole = prepare(data, BYTES)
    part = prepare(dataclasses.replace(data, max_tokens=max_tokens), BYTES)
    assert part.tokens["train"][:].tolist() == whole.tokens["train"][:max_tokens].tolist()
    # A byte has a token here, and the end of a document none of the bytes.
    assert part.corpus["text_bytes"]["train"] <= max_tokens
    held_out = part.tokens["validation"][:].tolist()
    assert held_out == whole.tokens["validation"][: len(held_out)].tolist()


# BPE training is slow on long words; with this limit it reads only the first document.
QUICK = dataclasses.replace(BPE, train_bytes=20_000)


@pytest.mark.parametrize("tokenizer", [BYTES, QUICK], ids=["bytes", "bpe"])
def test_a_long_document_gives_the_tokens_that_it_gives_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: TokenizerConfig
) -> None:
    """Neither the size of the batches nor cutting the document into pieces matters."""
    words = [f"word{number}" for number in range(20_000)]
    text = " ".join([*words, "日x" * 3_000, *words, "\n  x \n\n y" * 10_000])
    assert len(text) > 5 * PIECE_CHARS
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train-0.txt").write_text(" ".join(words))
    for name in ("train-1.txt", "validation.txt"):
        (tmp_path / "d" / name).write_text(text)
    found = []
    for size in (1 << 30, 1 << 16):
        monkeypatch.setattr(encoding_module, "BATCH_CHARS", size)
        data = data_config(path=tmp_path / "d", cache_dir=str(tmp_path / f"cache{size}"))
        prepared = prepare(data, tokenizer)
        found.append((prepared.data_sha256, prepared.corpus["text_bytes"]))
        assert prepared.corpus["documents"] == {"train": 2, "validation": 1}

    assert found[0] == found[1]
    plain = Tokenizer.from_file(str(prepared.tokenizer_file))
    assert prepared.tokens["validation"][:-1].tolist() == plain.encode(text).ids
