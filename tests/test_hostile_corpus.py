"""Corpora made to harm: refused in one sentence or read as the text that they are, within bounded memory and time."""

import ast
import dataclasses
import gzip
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import REPOSITORY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rope_exp.config import DataConfig, TokenizerConfig
from rope_exp.data import DataError, prepare
from rope_exp.data import files as files_module
from rope_exp.data.tokens import byte_tokenizer, train_bpe
from rope_exp.record import RecordError
from rope_exp.schema import ConfigError

BYTES = TokenizerConfig("bytes", "bytes", None, None, None, None)
TEXTS = [f"Document {number}: plain words of number {number * number}." for number in range(60)]
OUR_ERRORS = (ConfigError, DataError, RecordError)


def files_config(path: Path | str, **changes: object) -> DataConfig:
    config = DataConfig("mine", "files", str(path), None, None, "text", "document", "validation", 0.3, None, None, None)
    return dataclasses.replace(config, **changes)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ROPE_EXP_CACHE", str(folder))
    return folder


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != "locks") if cache.exists() else []


def refused(data: DataConfig, tokenizer: TokenizerConfig = BYTES) -> str:
    """The one sentence that refuses a corpus."""
    with pytest.raises(OUR_ERRORS) as caught:
        prepare(data, tokenizer)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- bombs, in a process of their own ------------------------------------------------------------------------------------

CHILD = """
import json, re, sys
from pathlib import Path
from rope_exp.config import DataConfig, TokenizerConfig
from rope_exp.data import prepare
data, tokenizer = json.loads(sys.argv[1])
try:
    prepared = prepare(DataConfig(**data), TokenizerConfig(**tokenizer))
    print(json.dumps(["read", prepared.corpus["documents"]]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def in_a_child(data: DataConfig, tokenizer: TokenizerConfig = BYTES, timeout: float = 60) -> tuple[str, str]:
    """What became of a preparation, in a process that takes under 3 GiB."""
    arguments = json.dumps([dataclasses.asdict(data), dataclasses.asdict(tokenizer)])
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, arguments], env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert child.returncode == 0, child.stderr
    outcome, peak_mib = child.stdout.splitlines()
    assert int(peak_mib) < 3 * 1024
    kind, what = json.loads(outcome)
    return kind, str(what)


def huge_page(path: Path) -> None:
    """A gigabyte of one letter, in some 30 KB."""
    table = pa.table({"text": ["a" * 1_000_000_000, "b"]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def one_text_in_a_million_rows(path: Path, text: str) -> None:
    rows = pa.array([0] * 1_000_000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(rows, pa.array([text]))})
    pq.write_table(table, path, compression="zstd", write_statistics=False)


def gzip_of(path: Path, piece: bytes, count: int) -> None:
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(count):
            file.write(piece)


def incompressible(num_chars: int) -> str:
    return " ".join(random.Random(0).randbytes(32).hex() for _ in range(num_chars // 65))


BOMBS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a huge page": ("a.parquet", huge_page, r"claims 1,000,000,\d+ bytes of text in 3\d,\d+"),
    "a letter many times": (
        "a.parquet",
        lambda path: one_text_in_a_million_rows(path, "a" * 100_000_000),
        "claims 100,00",
    ),
    "a book many times": (
        "a.parquet",
        lambda path: one_text_in_a_million_rows(path, incompressible(30_000_000)),
        "repeats its text over 16 times",
    ),
    "zeros": ("a.txt.gz", lambda path: gzip_of(path, bytes(1 << 20), 200), "unpacks to over 200 times its size"),
    "lines": ("a.jsonl.gz", lambda path: gzip_of(path, b'{"text": "a"}\n' * 80_000, 150), "unpacks to over 200 times"),
    "one long line": (
        "a.jsonl.gz",
        lambda path: gzip_of(path, incompressible(1 << 20).encode(), 300),
        r"holds a document of 26\d,\d+,\d+ characters or more",
    ),
    "a word of 100 MB": ("a.txt", lambda path: path.write_bytes(b"a" * 100_000_000), "100,000,000 characters on end"),
    "a sparse file": (
        "a.txt",
        lambda path: (path.touch(), os.truncate(path, 1 << 40)),
        "holds a document of 1,099,511,627,776 characters or more",
    ),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory_and_leaves_nothing(tmp_path, cache, case):
    name, make, message = BOMBS[case]
    make(tmp_path / name)
    kind, said = in_a_child(files_config(tmp_path / name))
    assert kind == "ConfigError", said
    assert said.startswith(f"data.path={tmp_path / name}: ")
    assert message.replace("\\d", "") in said or __import__("re").search(message, said), said
    assert left_in(cache) == []
