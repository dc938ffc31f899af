"""Small corpora and their configs, and the reference of all random numbers of data."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rope_exp.corpus import SIDES, Corpus, Prepared
from rope_exp.load import load_tokenizer
from rope_exp.sections import DataConfig, TokenizerConfig
from support.configs import REPOSITORY

TEXTS = [
    f"Document {number}: naïve words of number {number * number}.\n\nÉté {number}."
    for number in range(200)
]
PLAIN_TEXTS = [
    f"Document {number}: plain words of number {number * number}." for number in range(60)
]


def data_config(
    *, kind: str = "files", path: Path | str | None = None, **changes: Any
) -> DataConfig:
    of_files = {"text_column": "text", "validation_split": "validation"}
    values: dict[str, Any] = {
        "name": "mine",
        "kind": kind,
        "path": None if path is None else str(path),
        "sample_by": "document" if kind == "files" else None,
        "holdout_fraction": 0.1,
        **({} if kind == "stdlib" else of_files),
    }
    return DataConfig(**{**values, **changes})


def tokenizer_config(kind: str, **changes: Any) -> TokenizerConfig:
    values = {"name": kind, "kind": kind, "vocab_size": None, "train_bytes": None}
    return TokenizerConfig(**{**values, **changes})


BYTES = tokenizer_config("bytes")
BPE = tokenizer_config("bpe", vocab_size=300, train_bytes=100_000)


def corpus_of(texts: list[str], *, holdout_fraction: float) -> Corpus:
    data = data_config(path="memory", holdout_fraction=holdout_fraction)
    return Corpus(data, {"train": texts}, iter)


def text_of(tokens: Any, vocab_size: int, end_id: int) -> Prepared:
    """Return a corpus that was never on disk, with the same tokens on both sides."""
    sides = dict.fromkeys(SIDES, tokens)
    corpus = {"end_id": end_id}
    return Prepared(vocab_size, "", corpus, "", len(tokens), Path("nowhere"), sides)


def write_parquet(
    path: Path, texts: list[str] | list[str | None], *, column: str = "text", **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({column: pa.array(texts, pa.string()), "id": range(len(texts))})
    pq.write_table(table, path, **options)
    return path


def documents_of(prepared: Prepared, side: str) -> list[str]:
    tokenizer = load_tokenizer(prepared.folder / "tokenizer.json")
    end_id = prepared.corpus["end_id"]
    ids = prepared.tokens[side][:]
    assert ids[-1] == end_id
    parts = np.split(ids, np.flatnonzero(ids == end_id) + 1)[:-1]
    return [tokenizer.decode(part[:-1].tolist()) for part in parts]


def all_documents(prepared: Prepared) -> list[str]:
    return documents_of(prepared, "train") + documents_of(prepared, "validation")


def start_python(code: str, *arguments: Any, **options: Any) -> "subprocess.Popen[str]":
    """Start code in a new Python process that can import this module, with arguments as JSON."""
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    command = [sys.executable, *options.pop("flags", []), "-c", code, *map(json.dumps, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        **options,
    )


def philox(key: list[int], counter: list[int]) -> list[int]:
    """Return a block of Philox4x64-10 in integers (Salmon et al. 2011, fig. 5 and constants)."""
    word = 2**64
    for _ in range(10):
        product0 = 0xD2E7470EE14C6C93 * counter[0]
        product1 = 0xCA5A826395121157 * counter[2]
        counter = [
            product1 // word ^ counter[1] ^ key[0],
            product1 % word,
            product0 // word ^ counter[3] ^ key[1],
            product0 % word,
        ]
        key = [(key[0] + 0x9E3779B97F4A7C15) % word, (key[1] + 0xBB67AE8584CAA73B) % word]
    return counter


def spell(ids: Any, tokens: Any) -> str:
    return "".join(tokens[id_] for id_ in ids)
