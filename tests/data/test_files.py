"""Local corpora: formats, splits, and what cannot be one."""

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.configs import left_in
from support.corpora import (
    BPE,
    BYTES,
    TEXTS,
    all_documents,
    data_config,
    documents_of,
    num_documents,
    tokenizer_config,
    write_parquet,
)
from support.refused import refused

from rope_exp.data.files import open_files
from rope_exp.data.prepare import prepare


def texts_of(path: Path, **changes: Any) -> list[str]:
    """The training texts of a file."""
    return list(open_files(data_config(path=path, **changes)).read([path]))


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "a.jsonl.gz"])
def test_rows_of_every_format_are_documents(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [*TEXTS, None, ""]
    if name.endswith("parquet"):
        write_parquet(path, rows)
    else:
        open_ = gzip.open if name.endswith("gz") else open
        with open_(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": row, "n": 1}) + "\n" for row in rows)

    prepared = prepare(data_config(path=path), BYTES)
    assert sorted(all_documents(prepared)) == sorted(TEXTS)
    assert prepared.corpus["validation"] == "held out"


def test_the_bytes_are_those_of_the_texts_alone(tmp_path: Path) -> None:
    """As they are counted while they are encoded."""
    exact = sum(len(text.encode()) for text in TEXTS)
    parquet = write_parquet(tmp_path / "a.parquet", TEXTS)
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": text, "n": 1}) + "\n" for text in TEXTS))
    for path in (parquet, lines):
        assert open_files(data_config(path=path)).text_bytes == exact


JSON: dict[str, tuple[bytes, list[str]]] = {
    "an object": (b'{\n "text": "a",\n "n": 1\n}\n', ["a"]),
    "an array": (b'[\n {\n"text": "a"},\n {"text": "b"}\n]', ["a", "b"]),
    "an array of texts": (b'["a", "b"]', ["a", "b"]),
    "a byte order mark": (b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
    "a row without the key": (b'{"x": "a"}\n{"text": "b"}\n', ["b"]),
    "empty lines": (b'\n{"text": "a"}\n\n{"text": "b"}\n', ["a", "b"]),
    "Windows lines": (b'{"text": "a"}\r\n{"text": "b"}\r\n', ["a", "b"]),
    "a date": (b'{"text": "2020-01-01T00:00:00"}\n', ["2020-01-01T00:00:00"]),
    "a number that is none": (b'{"text": "a", "x": NaN}\n', ["a"]),
    "a surrogate pair": (b'{"text": "\\ud83d\\ude00"}\n', ["😀"]),
}


@pytest.mark.parametrize("case", JSON)
def test_json_is_read_however_it_is_laid_out(tmp_path: Path, case: str) -> None:
    content, texts = JSON[case]
    (tmp_path / "a.json").write_bytes(content)
    assert texts_of(tmp_path / "a.json") == texts


TEXT = "a\n\n\nb\r\n\r\nc\n\n\n\nd\x85e\u2028f\n"
CUTS = {
    "line": ["a", "", "", "b", "", "c", "", "", "", "d\x85e\u2028f"],
    "paragraph": ["a", "\nb", "c", "", "d\x85e\u2028f\n"],
    "document": ["a\n\n\nb\n\nc\n\n\n\nd\x85e\u2028f\n"],
}


@pytest.mark.parametrize("sample_by", CUTS)
def test_a_text_file_is_cut_as_asked(tmp_path: Path, sample_by: str) -> None:
    """Lines end as Python's files have them; two files packed into one are one text."""
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    assert texts_of(tmp_path / "a.txt", sample_by=sample_by) == CUTS[sample_by]
    packed = gzip.compress(TEXT[:20].encode()) + gzip.compress(TEXT[20:].encode())
    (tmp_path / "a.txt.gz").write_bytes(packed)
    assert texts_of(tmp_path / "a.txt.gz", sample_by=sample_by) == CUTS[sample_by]


@pytest.mark.parametrize(
    ("sample_by", "count"), [("document", 20), ("paragraph", 40), ("line", 40)]
)
def test_documents_of_many_text_files(tmp_path: Path, sample_by: str, count: int) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS[:20]):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    data = data_config(path=tmp_path / "texts", sample_by=sample_by, holdout_fraction=0.2)
    found = all_documents(prepare(data, BYTES))
    assert len(found) == count
    assert sorted("".join(found).replace("\n", "")) == sorted("".join(TEXTS[:20]).replace("\n", ""))


def test_another_column_may_hold_the_text(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS, column="content")
    assert num_documents(prepare(data_config(path=path, text_column="content"), BYTES)) == 200


def test_another_validation_split_may_be_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "d" / "train.parquet", TEXTS)
    write_parquet(tmp_path / "d" / "validation.parquet", ["not this"])
    write_parquet(tmp_path / "d" / "test.parquet", ["this"])
    named = prepare(data_config(path=tmp_path / "d", validation_split="test"), BYTES)
    assert documents_of(named, "validation") == ["this"]
    none = prepare(data_config(path=tmp_path / "d", validation_split=None), BYTES)
    assert "not this" not in documents_of(none, "train")


def test_names_that_look_like_patterns_are_names(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "what? [1]*.parquet", TEXTS)
    write_parquet(tmp_path / "whatX 1.parquet", ["not this"] * 50)
    assert sorted(all_documents(prepare(data_config(path=path), BYTES))) == sorted(TEXTS)


def test_real_text_goes_through_unchanged() -> None:
    folder = os.environ.get("ROPE_EXP_TEXT")
    if not folder:
        pytest.skip("ROPE_EXP_TEXT names no folder of real text")
    data = data_config(path=Path(folder) / "tinystories-sample")
    tokenizer = tokenizer_config("bpe", vocab_size=2048, train_bytes=500_000)
    prepared = prepare(data, tokenizer, seq_len=512)
    table = pq.read_table(Path(folder) / "tinystories-sample" / "train.parquet")
    assert documents_of(prepared, "train") == table["text"].to_pylist()
    assert prepared.corpus["text_bytes"]["train"] == 876_305
    assert open_files(data).splits.keys() == {"train", "validation"}


# -- bad input -------------------------------------------------------------------------------------


def parquet_bytes(values: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": values}), sink)
    return bytes(sink.getvalue())


GOOD = parquet_bytes(TEXTS)
BROKEN = GOOD[:200] + bytes(400) + GOOD[600:]  # footer whole, pages not
BAD_INPUT: dict[str, tuple[Mapping[str, bytes], Mapping[str, Any], tuple[str, ...]]] = {
    "no usable file": (
        {"a.csv": b"a"},
        {},
        ("data.path=", "no file that ends in .parquet, .jsonl"),
    ),
    "an empty folder": ({}, {}, ("data.path=", "holds no file")),
    "two kinds": (
        {"a.txt": b"a", "b.parquet": GOOD},
        {},
        ("holds Parquet and text files; choose one",),
    ),
    "an empty text": ({"a.txt": b""}, {}, ("data.text_column=text: the corpus holds no text",)),
    "an empty JSON": ({"a.jsonl": b""}, {}, ("data.text_column=text: the corpus holds no text",)),
    "an empty table": (
        {"a.parquet": parquet_bytes([])},
        {},
        ("data.text_column=text: the corpus holds no text",),
    ),
    "another column": (
        {"a.parquet": GOOD},
        {"text_column": "body"},
        ("data.text_column=body: is no column; there are text",),
    ),
    "another key": (
        {"a.jsonl": b'{"x": "a"}\n'},
        {},
        ("data.text_column=text: is no column; there are x",),
    ),
    "numbers": (
        {"a.parquet": parquet_bytes([1, 2])},
        {},
        ("data.text_column=text: holds int64, not text",),
    ),
    "lists": ({"a.parquet": parquet_bytes([["a"]])}, {}, ("data.text_column=text: holds list",)),
    "mixed values": (
        {"a.jsonl": b'{"text": "a"}\n{"text": 1}\n'},
        {},
        ("data.text_column=text: holds int, not text",),
    ),
    "rows that are none": ({"a.json": b"[1, 2]"}, {}, ("a.json: holds JSON that is no object",)),
    "no values": (
        {"a.parquet": parquet_bytes([None, "", None])},
        {},
        ("data.text_column=text: the corpus holds no text",),
    ),
    "latin-1": ({"a.txt": b"fine", "b.txt": b"caf\xe9"}, {}, ("b.txt: is not UTF-8 text",)),
    "broken JSON": (
        {"a.jsonl": b'{"text": "a"}\n' * 9, "b.jsonl": b'{"text": \n'},
        {},
        ("b.jsonl: cannot be read as JSON: line 1, column 9: Expecting value",),
    ),
    "broken JSON later": (
        {"a.jsonl": b'{"text": "a"}\n\n' * 9 + b'{"text": "b" 3}\n'},
        {},
        ("a.jsonl: cannot be read as JSON: line 19, column 14: Expecting ',' delimiter",),
    ),
    "broken JSON of one value": (
        {"a.json": b'[{"text": "a"},\n{"text": "b" 3}]\n'},
        {},
        ("a.json: cannot be read as JSON: line 2, column 14: Expecting ',' delimiter",),
    ),
    "no Parquet": (
        {"a.parquet": GOOD, "b.parquet": b"PAR1 no"},
        {},
        ("b.parquet: cannot be read as Parquet",),
    ),
    "broken Parquet": (
        {"a.parquet": GOOD, "b.parquet": BROKEN},
        {},
        ("b.parquet: cannot be read as Parquet",),
    ),
    "broken gzip": (
        {"a.txt.gz": gzip.compress(b"text" * 999)[:30]},
        {},
        ("a.txt.gz: cannot be read as text",),
    ),
    "no train": (
        {"test.parquet": GOOD, "validation.parquet": GOOD},
        {},
        ("has no split named train; it has test, valid",),
    ),
    "of no split": (
        {"one.parquet": GOOD, "two.parquet": GOOD, "validation.parquet": GOOD},
        {},
        ("holds files of no split, such as one.parquet, beside those of validation",),
    ),
    "train as validation": (
        {"a.parquet": GOOD},
        {"validation_split": "train"},
        ("data.validation_split=train",),
    ),
    "text cut by nothing": (
        {"a.txt": b"a"},
        {"sample_by": None},
        ("data.sample_by=null: must be document, paragraph",),
    ),
    "one document": (
        {"a.txt": b"one text"},
        {},
        (
            "data.holdout_fraction=0.1: leaves no document for ",
            "(of plain text, data.sample_by=line",
        ),
    ),
    "nothing held out": (
        {"a.parquet": GOOD},
        {"holdout_fraction": 1e-9},
        ("data.holdout_fraction=1e-09: leaves no",),
    ),
    "too short": (
        {"a.parquet": GOOD},
        {},
        ("train.seq_len=100000: a window needs 100001 tokens and the corpus has ",),
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, cache: Path, case: str
) -> None:
    contents, changes, words = BAD_INPUT[case]
    (tmp_path / "data").mkdir()
    for name, content in contents.items():
        (tmp_path / "data" / name).write_bytes(content)
    with refused(*words):
        prepare(data_config(path=tmp_path / "data", **changes), BYTES, seq_len=100_000)
    assert left_in(cache) == []


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with refused(f"data.path={tmp_path}/nowhere: there is no such file or folder"):
        prepare(data_config(path=tmp_path / "nowhere"), BPE)
