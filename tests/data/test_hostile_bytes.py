"""Tests that damage to the bytes of a valid file causes one of our errors or none."""

import gzip
import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.configs import left_in
from support.corpora import BYTES, data_config, tokenizer_config
from support.corpora import PLAIN_TEXTS as TEXTS
from support.harm import Harm, efforts, harmed, try_harms
from support.refused import REFUSALS, refused

from rope_exp.errors import DataError
from rope_exp.prepare import prepare
from rope_exp.tokenizer import encode, load_tokenizer, train_bpe


def parquet_bytes(**options: Any) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": TEXTS * 3, "id": range(180)})
    pq.write_table(table, sink, row_group_size=70, **options)
    return sink.getvalue()


JSON_LINES = "".join(json.dumps({"text": text, "n": {"a": [1]}}) + "\n" for text in TEXTS).encode()
VALID: dict[str, bytes] = {
    "a.parquet": parquet_bytes(compression="zstd"),
    "b.parquet": parquet_bytes(compression="none", use_dictionary=False),
    "a.jsonl": JSON_LINES,
    "a.json": json.dumps([{"text": text} for text in TEXTS]).encode(),
    "a.jsonl.gz": gzip.compress(JSON_LINES),
    "a.jsonl.zst": pa.compress(JSON_LINES, codec="zstd", asbytes=True),
    "a.txt": "\n".join(TEXTS).encode(),
    "a.txt.gz": gzip.compress("\n".join(TEXTS).encode()),
}


@efforts(20, 2000)
@pytest.mark.parametrize("name", VALID)
def test_a_harmed_corpus_file_is_read_or_refused(tmp_path: Path, name: str, effort: int) -> None:
    def check(harm: Harm) -> None:
        (tmp_path / name).write_bytes(harmed(VALID[name], harm))
        cache = tmp_path / "cache"
        try:
            prepare(
                data_config(
                    path=tmp_path / name,
                    sample_by="line",
                    holdout_fraction=0.3,
                    cache_dir=str(cache),
                ),
                BYTES,
            )
        except REFUSALS as error:
            assert "\n" not in str(error)
        shutil.rmtree(cache, ignore_errors=True)

    try_harms(check, effort)


SMALL = tokenizer_config("bpe", vocab_size=300, train_bytes=20_000)
BPE = train_bpe(SMALL, TEXTS).to_str().encode()


@efforts(200, 20_000)
def test_a_harmed_tokenizer_is_read_or_refused(tmp_path: Path, effort: int) -> None:
    path = tmp_path / "tokenizer.json"

    def check(harm: Harm) -> None:
        path.write_bytes(harmed(BPE, harm))
        try:
            encode(load_tokenizer(path), TEXTS)
        except REFUSALS as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)

    try_harms(check, effort)


def edited_bpe(**changes: Any) -> bytes:
    values = json.loads(BPE)
    values["model"] |= changes
    return json.dumps(values).encode()


HOSTILE_TOKENIZERS = {
    "no JSON": b"{",
    "a pickle": pickle.dumps([]),
    # This makes the Rust library index out of range.
    "a panic": edited_bpe(continuing_subword_prefix="a" * 100),
    "merges of nothing": edited_bpe(merges=[["no", "where"]]),
}


@pytest.mark.parametrize("case", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_file_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(HOSTILE_TOKENIZERS[case])
    with refused(f"{path} cannot be read as a tokenizer: ", by=DataError):
        load_tokenizer(path)


def test_a_hostile_pretrained_folder_is_refused(folder: Path, tmp_path: Path, cache: Path) -> None:
    pretrained = tmp_path / "pretrained"
    pretrained.mkdir()
    (pretrained / "tokenizer.json").write_bytes(HOSTILE_TOKENIZERS["a panic"])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (pretrained / "tokenizer_config.json").write_text(json.dumps(settings))
    with refused(str(pretrained)):
        prepare(data_config(path=folder), tokenizer_config("pretrained", path=str(pretrained)))
    assert left_in(cache) == []
