"""Corpora made to harm: refused in one sentence or read as text, in bounded memory and time."""

import gzip
import io
import json
import os
import pickle
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.configs import left_in
from support.corpora import BYTES, data_config, num_documents, start_python
from support.refused import REFUSALS, refused

from rope_exp.data.prepare import prepare
from rope_exp.system.errors import ConfigError

CHILD = """
import json, sys
from support.corpora import BYTES, data_config
from rope_exp.data.prepare import prepare
for values in json.loads(sys.argv[1]):
    try:
        kind, what = "read", str(prepare(data_config(**values), BYTES).corpus["documents"])
    except Exception as error:
        kind, what = type(error).__name__, str(error)
    status = open("/proc/self/status").read()
    peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
    print(json.dumps([kind, what, peak]), flush=True)
"""


def in_a_child(*corpora: dict[str, Any]) -> list[tuple[str, str]]:
    """What became of the corpora that a process lived for; it takes under 3 GiB."""
    stdout, _ = start_python(CHILD, corpora).communicate(timeout=240)
    outcomes = [json.loads(line) for line in stdout.splitlines()]
    assert all(peak_mib < 3 * 1024 for _, _, peak_mib in outcomes), outcomes
    return [(kind, what) for kind, what, _ in outcomes]


def huge_page(path: Path) -> None:
    """A gigabyte of one letter, in some 30 KB."""
    table = pa.table({"text": ["a" * 1_000_000_000, "b"]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def one_text_in_a_million_rows(path: Path, text: str) -> None:
    rows = pa.array([0] * 1_000_000, pa.int32())
    write_rows(path, pa.DictionaryArray.from_arrays(rows, pa.array([text])))


def write_rows(path: Path, rows: pa.Array) -> None:
    table = pa.table({"text": rows})
    pq.write_table(table, path, compression="zstd", write_statistics=False, store_schema=False)


def gzip_of(path: Path, piece: bytes, count: int) -> None:
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(count):
            file.write(piece)


def incompressible(num_chars: int) -> str:
    source = random.Random(0)
    return " ".join(source.randbytes(32).hex() for _ in range(num_chars // 65))


UNPACKS = "over 200 times its size"
LONG = "characters or more; cut it into shorter ones"
BOMBS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a huge page": ("a.parquet", huge_page, UNPACKS),
    "a letter many times": (
        "a.parquet",
        lambda path: one_text_in_a_million_rows(path, "a" * 100_000_000),
        UNPACKS,
    ),
    "a book many times": (
        "a.parquet",
        lambda path: one_text_in_a_million_rows(path, incompressible(30_000_000)),
        UNPACKS,
    ),
    "rows of nothing": (
        "a.parquet",
        lambda path: write_rows(path, pa.nulls(70_000_000, pa.string())),
        UNPACKS,
    ),
    "zeros": ("a.txt.gz", lambda path: gzip_of(path, bytes(1 << 20), 200), UNPACKS),
    "lines": ("a.jsonl.gz", lambda path: gzip_of(path, b'{"text": "a"}\n' * 80_000, 150), UNPACKS),
    "one long line": (
        "a.jsonl",
        lambda path: path.write_bytes(b'{"text": "' + b"ab cd " * 50_000_000),
        LONG,
    ),
    "a word of 100 MB": (
        "a.txt",
        lambda path: path.write_bytes(b"a" * 100_000_000),
        "100,000,000 characters on end",
    ),
    "a sparse file": ("a.txt", lambda path: (path.touch(), os.truncate(path, 1 << 40)), LONG),
    "a sparse line": ("a.jsonl", lambda path: (path.touch(), os.truncate(path, 1 << 40)), LONG),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, cache: Path, case: str) -> None:
    name, make, words = BOMBS[case]
    make(tmp_path / name)
    [(kind, said)] = in_a_child({"path": str(tmp_path / name), "holdout_fraction": 0.3})
    assert kind == "ConfigError", said
    assert said.startswith(f"data.path={tmp_path / name}: ")
    assert words in said
    assert "\n" not in said
    assert left_in(cache) == []


@pytest.mark.parametrize("claim", ["rows", "unpacked"])
def test_a_footer_that_claims_the_absurd_is_refused(
    tmp_path: Path, cache: Path, claim: str
) -> None:
    """Before space is asked for: a footer of the right form, with 2^62 - 1 in it.

    Its fields are of that many bytes from the start.
    """
    path = tmp_path / "a.parquet"
    path.write_bytes(absurd_parquet(**{claim: 2**62 - 1}))
    with refused(f"data.path={path}: unpacks to 4,611,686,018,427,387,9", UNPACKS, by=ConfigError):
        prepare(data_config(path=path), BYTES)
    assert left_in(cache) == []


def absurd_parquet(*, rows: int = 1, unpacked: int = 30) -> bytes:
    """A Parquet file of one text, its footer written by hand in Thrift's compact protocol."""
    text = b"\x04text"
    i32 = b"\x15"
    root = b"\x48\x06schema" + i32 + number(1) + b"\x00"
    leaf = i32 + number(6) + b"\x25" + number(1) + b"\x18" + text + b"\x25" + number(0) + b"\x00"
    column = i32 + number(6) + b"\x19\x15" + number(0) + b"\x19\x18" + text + i32 + number(0)
    for size in (rows, unpacked, 30):
        column += b"\x16" + number(size)
    column += b"\x26" + number(4) + b"\x00"
    group = b"\x19\x1c\x26" + number(0) + b"\x1c" + column + b"\x00"
    group += b"\x16" + number(30) + b"\x16" + number(rows) + b"\x00"
    footer = i32 + number(1) + b"\x19\x2c" + root + leaf
    footer += b"\x16" + number(rows) + b"\x19\x1c" + group + b"\x00"
    return b"PAR1" + bytes(30) + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def number(value: int) -> bytes:
    """A whole number as Thrift spells it: doubled, 7 bits a byte, the lowest first."""
    value *= 2
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def zip_bytes() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../canary", "a" * 1000)
        file.writestr("a.txt", "text\n" * 1000)
    return sink.getvalue()


def tar_bytes() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as file:
        file.addfile(tarfile.TarInfo("../../canary"))
    return sink.getvalue()


DISGUISED: dict[str, tuple[str, bytes]] = {
    "a zip": ("a.txt", zip_bytes()),
    "a zip as JSON": ("a.jsonl", zip_bytes()),
    "a zip as gzip": ("a.txt.gz", zip_bytes()),
    "a packed tar": ("a.txt", tar_bytes()),
    "UTF-16": ("a.txt", "words\n".encode("utf-16") * 50),
    "UTF-32": ("a.jsonl", '{"text": "a"}\n'.encode("utf-32")),
    "invalid UTF-8": ("a.jsonl", b'{"text": "caf\xe9"}\n' * 50),
    "half a character": ("a.jsonl", b'{"text": "\\ud800"}\n' * 50),
    "zeros as zstd": ("a.txt.zst", bytes(1000)),
    "deep arrays": ("a.jsonl", b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    "deep objects": ("a.json", b'{"x":' * 100_000 + b"1" + b"}" * 100_000),
    "deep over lines": (
        "a.jsonl",
        b'{"text": "a", "x": ' + b"[\n" * 100_000 + b"]" * 100_000 + b"}\n",
    ),
    "deep behind strings": ("a.jsonl", b'{"]}":' * 100_000),
    "an array of nothing": ("a.json", b"[]"),
    "a number": ("a.json", b"1" * 100_000),
    "no Parquet": ("a.parquet", b"PAR1" + bytes(100) + b"PAR1"),
    "a footer of 2 GB": ("a.parquet", b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1"),
    "a key as its own value": ("a.json", b'{"text": {"text": {"text": "a"}}}\n'),
}


@pytest.fixture(scope="module")
def disguised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What became of each, read by one process, which a reader's crash would end."""
    root = tmp_path_factory.mktemp("disguised")
    corpora = []
    for case, (name, content) in DISGUISED.items():
        (root / case).mkdir()
        (root / case / name).write_bytes(content)
        values = {"path": str(root / case), "sample_by": "line", "cache_dir": str(root / "cache")}
        corpora.append(values)
    outcomes = dict(zip(DISGUISED, in_a_child(*corpora), strict=False))
    assert left_in(root / "cache") == []
    assert sorted(os.listdir(root)) == sorted([*DISGUISED, "cache"])
    return outcomes


@pytest.mark.parametrize("case", DISGUISED)
def test_what_is_not_what_its_name_says_is_refused(
    disguised: dict[str, tuple[str, str]], case: str
) -> None:
    kind, said = disguised[case]
    assert kind == "ConfigError", said
    assert "data." in said and "\n" not in said


class Bomb:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.canary,))


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.jsonl", "a.json", "a.txt", "a.txt.gz", "a.jsonl.zst"]
)
def test_a_pickle_is_never_loaded_whatever_its_name(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    data = data_config(path=tmp_path / "corpus", sample_by="line", holdout_fraction=0.5)
    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        bomb = pickle.dumps(Bomb(canary), protocol)
        pickle.loads(bomb)
        assert canary.exists()  # it would
        canary.unlink()
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / name).write_bytes(bomb)
        try:
            prepare(data, BYTES)
        except REFUSALS as error:
            assert "\n" not in str(error)
        assert not canary.exists()


def test_byte_order_marks_and_control_characters_are_text(tmp_path: Path) -> None:
    lines = b"".join(b"line\0\x1b[2J\r %d\n" % number for number in range(50))
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + lines)
    data = data_config(path=tmp_path / "a.txt", sample_by="line", holdout_fraction=0.3)
    assert num_documents(prepare(data, BYTES)) >= 50
