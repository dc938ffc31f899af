"""Tests of corpora in files: formats, splits, names, and errors for unreadable ones."""

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from support.configs import left_in
from support.corpora import BYTES, PLAIN_TEXTS, TEXTS, data_config, documents_of, write_parquet
from support.refused import refused

from rope_exp.corpora.files import list_files, open_corpus, state
from rope_exp.prepare import prepare

pytestmark = pytest.mark.usefixtures("empty_cache")


def texts_of(path: Path, **changes: Any) -> list[str]:
    """Return the training texts of a file or folder."""
    corpus = open_corpus(data_config(path=path, **changes))
    return list(filter(None, corpus.read(corpus.splits["train"])))


def table_of(values: list[Any], names: Sequence[str]) -> Any:
    return pa.table([pa.array(values)] * len(names), names=names)


def parquet_bytes(values: list[Any], names: Sequence[str] = ("text",), **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table_of(values, names), sink, **options)
    return bytes(sink.getvalue())


def zipped(name: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(name, content)
    return archive.getvalue()


def arrow_file(texts: list[str], names: Sequence[str] = ("text",)) -> bytes:
    sink = io.BytesIO()
    table = table_of(texts, names)
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


VALUES = [*PLAIN_TEXTS, None, ""]
ROWS = [{"text": text, "n": {"a": [1]}} for text in VALUES]
JSON_LINES = "\n".join(map(json.dumps, ROWS)).encode()
LINES = "\n".join(PLAIN_TEXTS).encode()
VALID: dict[str, bytes] = {
    "a.parquet": parquet_bytes(VALUES, row_group_size=25, compression="zstd"),
    "a.jsonl": JSON_LINES,
    "a.json": json.dumps(ROWS).encode(),
    "a.jsonl.gz": gzip.compress(JSON_LINES),
    "a.jsonl.zst": pa.compress(JSON_LINES, codec="zstd", asbytes=True),
    "a.jsonl.bz2": bz2.compress(JSON_LINES),
    "a.jsonl.xz": lzma.compress(JSON_LINES),
    "a.jsonl.zip": zipped("a.jsonl", JSON_LINES),
    "a.ndjson": JSON_LINES,
    "a.feather": arrow_file(PLAIN_TEXTS),
    "a.arrow": arrow_file(PLAIN_TEXTS),
    "a.csv": b"text\n" + LINES,
    "a.tsv": b"n\ttext\n" + LINES.replace(b"Document", b"1\tDocument"),
    "a.txt": LINES,
    "a.txt.gz": gzip.compress(LINES[:99]) + gzip.compress(LINES[99:]),
}


# A name, the file's content, and its texts.
READ: dict[str, tuple[str, bytes, list[str]]] = {
    **{name: (name, content, PLAIN_TEXTS) for name, content in VALID.items()},
    "an object": ("a.json", b'{\n "text": "a",\n "n": 1\n}\n', ["a"]),
    "an array": ("a.json", b'[\n {\n"text": "a"},\n {"text": "b"}\n]', ["a", "b"]),
    "an array of texts": ("a.json", b'["a", "b"]', ["a", "b"]),
    "a row without the key": ("a.json", b'{"x": "a"}\n{"text": "b"}\n', ["b"]),
    "empty and Windows lines": ("a.jsonl", b'\n{"text": "a"}\r\n\n{"text": "b"}\n', ["a", "b"]),
    "missing cells": ("a.csv", b"n,text,m\n1,,x\n2\n3,NA\n", ["NA"]),
    "a mark of byte order in JSON": ("a.json", b'\xef\xbb\xbf{"text": "a"}\n', ["a"]),
    "in CSV": ("a.csv", b"\xef\xbb\xbftext\na\n", ["a"]),
    "in text": ("a.txt", b"\xef\xbb\xbfa", ["a"]),
}


@pytest.mark.parametrize("case", READ)
def test_a_file_is_read_however_it_is_laid_out(tmp_path: Path, case: str) -> None:
    name, content, texts = READ[case]
    (tmp_path / name).write_bytes(content)
    assert texts_of(tmp_path / name, sample_by="line") == texts


CUTS = {
    "line": ["a", "b", "c", "d\x85e\u2028f"],
    "paragraph": ["a", "\nb", "c", "d\x85e\u2028f\n"],
    "document": ["a\n\n\nb\n\nc\n\n\n\nd\x85e\u2028f\n"],
}


@pytest.mark.parametrize("sample_by", CUTS)
def test_a_text_file_is_cut_as_asked(tmp_path: Path, sample_by: str) -> None:
    """Lines end as in Python's text files."""
    (tmp_path / "a.txt").write_bytes("a\n\n\nb\r\n\r\nc\n\n\n\nd\x85e\u2028f\n".encode())
    assert texts_of(tmp_path / "a.txt", sample_by=sample_by) == CUTS[sample_by]


def test_another_validation_split_may_be_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "d" / "train.parquet", TEXTS)
    write_parquet(tmp_path / "d" / "validation.parquet", ["not this"])
    write_parquet(tmp_path / "d" / "test.parquet", ["this"])
    named = prepare(data_config(path=tmp_path / "d", validation_split="test"), BYTES)
    assert documents_of(named, "validation") == ["this"]
    none = prepare(data_config(path=tmp_path / "d", validation_split=None), BYTES)
    assert "not this" not in documents_of(none, "train")


SPLITS = {"train": TEXTS, "validation": ["held out"]}


@pytest.mark.parametrize("has_card", [True, False])
def test_a_snapshot_of_the_hub_is_read(tmp_path: Path, has_card: bool) -> None:
    """All files of a snapshot are links to blobs elsewhere; its card or their names tell splits."""
    snapshot = tmp_path / "snapshots" / "0123"
    (snapshot / "data").mkdir(parents=True)
    card = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    card += "".join(f"  - {{split: {name}, path: data/{name}*}}\n" for name in SPLITS) + "---\n"
    if has_card:
        (snapshot / "README.md").write_text(card)
    for name, texts in SPLITS.items():
        write_parquet(tmp_path / f"{name}.parquet", texts)
        link = snapshot / "data" / f"{name}-00000-of-00001.parquet"
        link.symlink_to(tmp_path / f"{name}.parquet")

    prepared = prepare(data_config(path=snapshot), BYTES)
    assert documents_of(prepared, "train") == TEXTS
    assert documents_of(prepared, "validation") == ["held out"]


def test_a_subset_is_that_of_the_card(tmp_path: Path) -> None:
    card = "---\nconfigs:\n- {config_name: one, data_files: a.txt, default: true}\n"
    (tmp_path / "README.md").write_text(card + "- {config_name: two, data_files: b.txt}\n---\n")
    for name, text in (("a", "first"), ("b", "second")):
        (tmp_path / f"{name}.txt").write_text(text)
    assert texts_of(tmp_path, sample_by="document") == ["first"]
    assert texts_of(tmp_path, sample_by="document", subset="two") == ["second"]
    with refused("data.subset=two: is for a folder with a dataset card"):
        texts_of(tmp_path / "a.txt", subset="two")
    (tmp_path / "README.md").write_text("Two texts.\n")
    assert texts_of(tmp_path, sample_by="document") == ["first", "second"]


def test_cells_of_csv_are_text_as_it_is_written(tmp_path: Path) -> None:
    """No cell is a missing value or a number, with or without quotes, in any chunk of rows."""
    texts = ["null", "NA", "None", "nan", "N/A", "1.50", "007", "2020-01-01", "True"]
    texts += map(str, range(20_000))
    for quote in ("", '"'):
        rows = "".join(f"{quote}{text}{quote}\n" for text in texts)
        (tmp_path / "a.csv").write_text("text\n" + rows)
        assert texts_of(tmp_path / "a.csv") == texts


def test_json_keeps_texts_that_look_like_dates(tmp_path: Path) -> None:
    """In every shard, and whatever other columns hold; a shard may hold null alone."""
    dates = ["2020-01-01", "2020-01-01T10:00:00Z", "2020-01-01 00:00:00"]
    shards: tuple[list[Any], ...] = (
        [{"text": None}],
        [{"text": date} for date in dates],
        [{"text": "a", "n": 1}, {"text": "b", "n": "x"}],
        [{"m": {"n": [1]}, "text": "c"}],
    )
    for number, rows in enumerate(shards):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert texts_of(tmp_path) == [*dates, "a", "b", "c"]


def test_a_folder_may_mix_formats(tmp_path: Path) -> None:
    """A name's last suffix tells its format, in capitals, too; other files are passed over."""
    (tmp_path / "mine").mkdir()
    contents = {
        "A.TXT": "a",
        "b.csv": "text\nb\n",
        "C.JSONL": '{"text": "c"}\n',
        "d.json": '["d"]',
        "e.json.txt": "e",
        "LICENSE": "no text of the corpus",
    }
    for name, content in contents.items():
        (tmp_path / "mine" / name).write_text(content)
    write_parquet(tmp_path / "mine/f.parquet", ["f"])
    os.mkfifo(tmp_path / "mine/pipe.txt")
    assert sorted(texts_of(tmp_path / "mine", sample_by="document")) == [*"abcdef"]
    (tmp_path / "mine/g.txt").symlink_to("A.TXT")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert sorted(texts_of(tmp_path / "link", sample_by="document")) == [*"aabcdef"]


@pytest.mark.parametrize("name", ["a.jsonl.tar.gz", "part.gz", "b.PQ", "b.sqlite", "b.text"])
def test_data_that_is_not_read_is_not_left_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSON_LINES)
    (tmp_path / name).write_bytes(b"other data")
    with refused(f"data.path={tmp_path / name}: would be left out: its name says", ".jsonl, "):
        texts_of(tmp_path)


@pytest.mark.parametrize("name", ["b.jsonl.bz2", "b.tsv", "b.ndjson.gz", "b.pq"])
def test_what_an_older_version_left_out_is_prepared(tmp_path: Path, name: str) -> None:
    """A corpus that lacks a file must not be found under the hash of the whole folder."""
    (tmp_path / "a.jsonl").write_bytes(JSON_LINES)
    data = data_config(path=tmp_path)
    assert state(data) == [*list_files(data), "as text"]
    (tmp_path / name).write_bytes(b"more")
    assert state(data) == [*list_files(data), "as text", "of every format"]


def test_names_that_datasets_misreads_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "[v1]"
    folder.mkdir()
    (folder / "a::b.jsonl").write_bytes(JSON_LINES)
    with refused(f"data.path={folder}: has [ in its name"):
        texts_of(folder)
    with refused("a::b.jsonl: has :: in its name"):
        texts_of(folder / "a::b.jsonl")
    (folder / "a::b.jsonl").rename(folder / "a.jsonl")
    assert texts_of(folder / "a.jsonl") == PLAIN_TEXTS


def test_text_behind_a_link_to_a_folder_is_not_left_out_silently(tmp_path: Path) -> None:
    for name in ("mine", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("text")
    (tmp_path / "mine/more").symlink_to(tmp_path / "more")
    with refused("more/a.txt: would be left out"):
        texts_of(tmp_path / "mine")


def test_a_dataset_saved_to_disk_is_read(tmp_path: Path) -> None:
    """Alone, and with splits; the JSON files beside it are not text."""
    whole = datasets.Dataset.from_dict({"text": TEXTS})
    whole.save_to_disk(tmp_path / "whole")
    assert texts_of(tmp_path / "whole") == TEXTS

    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "splits")
    assert texts_of(tmp_path / "splits") == TEXTS


# -- bad input -------------------------------------------------------------------------------------


TWO_COLUMNS = "data.text_column=text: names two columns; rename one"
NO_TEXT = "data.path=…holds no text; of a table, the column data.text_column=text is read"
GOOD = parquet_bytes(TEXTS)
BROKEN = GOOD[:200] + bytes(400) + GOOD[600:]  # an intact footer after broken pages
# The files of each case, and parts of the error.
BAD_INPUT: dict[str, tuple[Mapping[str, bytes], str]] = {
    "no usable file": (
        {"a.doc": b"a"},
        "data.path=…holds no file that ends in .parquet, .arrow, …(or .gz, .zst, .bz2, .xz, .zip",
    ),
    "an empty text": ({"a.txt": b""}, NO_TEXT),
    "no values": ({"a.parquet": parquet_bytes([None, "", None])}, NO_TEXT),
    "a comma without quotes": (
        {"a.csv": b"text\na, b\nc, d\n"},
        "a.csv: cannot be read: rows have more cells than the header",
    ),
    "half a surrogate pair": (
        {"a.jsonl": b'{"text": "\\ud83d"}\n'},
        "a.jsonl: cannot be read: 'utf-8' codec can't encode…surrogates not allowed",
    ),
    "another column": ({"a.parquet": GOOD}, "data.text_column=body: is no column; there are text"),
    "another key": (
        {"a.jsonl": b'{"x": "a"}\n'},
        "data.text_column=text: is no column; there are x",
    ),
    "mixed values": (
        {"a.jsonl": b'{"text": "a"}\n{"text": 1}\n'},
        "data.text_column=text: holds int, not text",
    ),
    "latin-1": ({"a.txt": b"fine", "b.txt": b"caf\xe9"}, "cannot be read: 'utf-8' codec"),
    "broken JSON": (
        {"a.jsonl": b'{"text": "a"}\n\n' * 9 + b'{"text": "b" 3}\n'},
        "a.jsonl: cannot be read: line 19, column 14: Expecting ',' delimiter",
    ),
    "half a record": (
        {"a.jsonl": b'{"text": "a"}\n\n{"text": "b"}\n{"text": "c'},
        "a.jsonl: cannot be read: line 4, column 10: Unterminated string",
    ),
    "two columns in CSV": ({"a.csv": b"text,n,text\na,1,b\n"}, TWO_COLUMNS),
    "two columns in a packed CSV": (
        {"a.csv.gz": gzip.compress(b"text,n,text\na,1,b\n")},
        TWO_COLUMNS,
    ),
    "two columns in a stream": (
        {"a.tsv.zst": pa.compress(b"text\tn\ttext\na\t1\tb\n", codec="zstd", asbytes=True)},
        TWO_COLUMNS,
    ),
    "a key twice in JSON lines": (
        {"a.jsonl": b'{"text": "a"}\n{"text": "b", "n": 1, "text": "c"}\n'},
        TWO_COLUMNS,
    ),
    "a key twice in JSON": ({"a.json": b'[\n{"text": "b",\n"text": "c"}]'}, TWO_COLUMNS),
    "two columns in Parquet": (
        {"a.parquet": parquet_bytes(TEXTS, names=["text"] * 2)},
        TWO_COLUMNS,
    ),
    "two columns in Arrow": ({"a.arrow": arrow_file(TEXTS, names=["text"] * 2)}, TWO_COLUMNS),
    "broken Parquet": ({"a.parquet": GOOD, "b.parquet": BROKEN}, "b.parquet: cannot be read: "),
    "broken gzip": (
        {"a.txt.gz": gzip.compress(b"text" * 999)[:30]},
        "cannot be read: Compressed file ended",
    ),
    "no train": (
        {"test.parquet": GOOD, "validation.parquet": GOOD},
        "has no split named train; it has test, valid",
    ),
    "of no split": (
        {"one.parquet": GOOD, "two.parquet": GOOD, "validation.parquet": GOOD},
        "one.parquet: would be left out beside the files of validation",
    ),
    "train as validation": ({"a.parquet": GOOD}, "data.validation_split=train"),
    "misspelt validation": (
        {"train.parquet": GOOD, "test.parquet": GOOD},
        "data.validation_split=tset: is no split of …; it must be one of test, validation, or null",
    ),
    "eight lines": (
        {"a.txt": b"\n".join(b"verse %d" % number for number in range(8))},
        "data.holdout_fraction=0.1: leaves no document for …of the corpus's 8; a larger share",
    ),
    "one document": (
        {"a.txt": b"one text"},
        "data.holdout_fraction=0.1: leaves no document for …; of plain text, data.sample_by=line",
    ),
}
CHANGES = {
    "another column": {"text_column": "body"},
    "train as validation": {"validation_split": "train"},
    "misspelt validation": {"validation_split": "tset"},
    "eight lines": {"sample_by": "line"},
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, empty_cache: Path, case: str
) -> None:
    contents, words = BAD_INPUT[case]
    (tmp_path / "data").mkdir()
    for name, content in contents.items():
        (tmp_path / "data" / name).write_bytes(content)
    with refused(*words.split("…")):
        prepare(data_config(path=tmp_path / "data", **CHANGES.get(case, {})), BYTES)
    assert left_in(empty_cache) == []
