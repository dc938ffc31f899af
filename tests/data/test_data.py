"""Corpora, their preparation, and the blocks that it leaves."""

import dataclasses
import errno
import gzip
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import REPOSITORY, left_in
from tokenizers import Tokenizer

from rope_exp.config.sections import DataConfig, TokenizerConfig
from rope_exp.data import prepare as blocks_module
from rope_exp.data import store as store_module
from rope_exp.data.corpus import library_files, open_corpus
from rope_exp.data.documents import Corpus
from rope_exp.data.prepare import Prepared, prepare
from rope_exp.data.tokenizer import load_tokenizer
from rope_exp.system.errors import ConfigError, DataError, DiskError

ROOT = REPOSITORY
BYTES = TokenizerConfig("bytes", "bytes", None, None, None, None)
BPE = TokenizerConfig("bpe", "bpe", 300, 100_000, None, None)
TEXTS = [
    f"Document {number}: naïve words of number {number * number}.\n\nÉté {number}."
    for number in range(200)
]


def files_config(path: Path | str, **changes: object) -> DataConfig:
    config = DataConfig(
        "mine",
        "files",
        str(path),
        None,
        None,
        "text",
        "document",
        "validation",
        0.1,
        None,
        None,
        None,
    )
    return replace(config, **changes)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ROPE_EXP_CACHE", str(folder))
    return folder


def write_parquet(
    path: Path, texts: list[str | None], column: str = "text", **options: object
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({column: pa.array(texts, pa.string()), "id": range(len(texts))}), path, **options
    )
    return path


def documents_of(prepared: Prepared, side: str) -> list[str]:
    """Decode a side's documents one by one."""
    tokenizer, end_id = load_tokenizer(prepared.tokenizer_file), prepared.corpus["end_id"]
    ids = getattr(prepared, side)[:]
    assert ids[-1] == end_id
    parts = np.split(ids, np.flatnonzero(ids == end_id) + 1)[:-1]
    return [tokenizer.decode(part[:-1].tolist()) for part in parts]


def held_out(prepared: Prepared) -> list[str]:
    return documents_of(prepared, "validation")


# -- what the blocks hold ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_blocks_equal_an_independent_encoding_by_the_plain_library(tmp_path, tokenizer):
    write_parquet(tmp_path / "data" / "train-00000.parquet", TEXTS)
    write_parquet(tmp_path / "data" / "validation.parquet", TEXTS[:20])
    write_parquet(tmp_path / "data" / "test.parquet", ["never read"] * 20)
    prepared = prepare(files_config(tmp_path / "data"), tokenizer, seq_len=64)
    plain = Tokenizer.from_file(str(prepared.tokenizer_file))
    end_id = plain.token_to_id("<|endoftext|>")
    for side, texts in (("train", TEXTS), ("validation", TEXTS[:20])):
        tokens = getattr(prepared, side)[:]
        assert tokens.dtype == np.uint16
        assert tokens.tolist() == [
            id_ for text in texts for id_ in [*plain.encode(text).ids, end_id]
        ]
        assert prepared.corpus["documents"][side] == len(texts)
        assert prepared.corpus["text_bytes"][side] == sum(len(text.encode()) for text in texts)
        assert prepared.corpus["tokens"][side] == len(tokens)
    assert prepared.vocab_size == plain.get_vocab_size()
    prepared.verify()


def test_a_large_vocabulary_takes_32_bits(tmp_path):
    path = tmp_path / "tokens.bin"
    with store_module.TokenFile(path, np.uint32) as file:
        file.write(np.array([70_000, 1], dtype=np.uint32))
    assert np.fromfile(path, "<u4").tolist() == [70_000, 1]


def test_an_id_that_does_not_fit_never_wraps(tmp_path):
    with (
        store_module.TokenFile(tmp_path / "tokens.bin", np.uint16) as file,
        pytest.raises(AssertionError, match="would wrap"),
    ):
        file.write(np.array([65_536], dtype=np.uint32))


def test_digests_cover_blocks_of_a_fixed_size_however_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "BLOCK_BYTES", 64)
    digests = []
    for step in (1, 7, 1000):
        with store_module.TokenFile(tmp_path / str(step), np.uint16) as file:
            for first in range(0, 1000, step):
                file.write(np.arange(first, min(first + step, 1000), dtype=np.uint32))
        assert np.fromfile(tmp_path / str(step), "<u2").tolist() == list(range(1000))
        digests.append(bytes(file.digests))
    blocks = [
        np.arange(1000, dtype="<u2").tobytes()[first : first + 64] for first in range(0, 2000, 64)
    ]
    assert digests[0] == b"".join(hashlib.sha256(block).digest() for block in blocks)
    assert digests[0] == digests[1] == digests[2]


def test_the_embedded_corpus_is_the_library_without_tests_and_build_output():
    root = Path(json.__file__).parent.parent
    names = {str(path.relative_to(root)) for path in library_files(root)}
    assert {"json/decoder.py", "os.py", "asyncio/base_events.py"} <= names
    assert not any("test" in Path(name).parts or "site-packages" in name for name in names)
    assert not any("_sysconfigdata" in name or name.startswith("config-") for name in names)


def test_the_embedded_corpus_counts_what_it_cannot_decode(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    for number in range(40):
        (tmp_path / "lib" / f"m{number}.py").write_text(f"x = {number}\n" * 20)
    (tmp_path / "lib" / "bad.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "lib" / "latin.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "lib"))
    prepared = prepare(DataConfig("py", "stdlib", *[None] * 6, 0.1, None, None, None), BYTES)
    assert prepared.corpus["files_not_decoded"] == 1
    assert prepared.corpus["python"] == sys.version.split()[0]
    documents = documents_of(prepared, "train") + held_out(prepared)
    assert "# coding: latin-1\nx = 'é'\n" in documents
    assert len(documents) == 41


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "a.jsonl.gz"])
def test_rows_of_every_format_are_documents(tmp_path, name):
    path, rows = tmp_path / name, [*TEXTS, None, ""]
    if name.endswith("parquet"):
        write_parquet(path, rows)
    else:
        with (gzip.open if name.endswith("gz") else open)(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": row, "n": 1}) + "\n" for row in rows)
    prepared = prepare(files_config(path), BYTES)
    assert sorted(documents_of(prepared, "train") + held_out(prepared)) == sorted(TEXTS)
    assert prepared.corpus["validation"] == "held out"


@pytest.mark.parametrize(
    ("sample_by", "num_documents"), [("document", 20), ("paragraph", 40), ("line", 40)]
)
def test_a_text_file_is_cut_into_documents_as_asked(tmp_path, sample_by, num_documents):
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS[:20]):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(text, encoding="utf-8")
    prepared = prepare(
        files_config(tmp_path / "texts", sample_by=sample_by, holdout_fraction=0.2), BYTES
    )
    found = documents_of(prepared, "train") + held_out(prepared)
    assert len(found) == num_documents
    assert sorted("".join(found).replace("\n", "")) == sorted("".join(TEXTS[:20]).replace("\n", ""))


def test_another_column_may_hold_the_text(tmp_path):
    write_parquet(tmp_path / "a.parquet", TEXTS, column="content")
    prepared = prepare(files_config(tmp_path / "a.parquet", text_column="content"), BYTES)
    assert prepared.corpus["documents"]["train"] + prepared.corpus["documents"]["validation"] == 200


@pytest.mark.parametrize("max_tokens", [200, 500, 3000])
def test_training_stops_at_the_limit_exactly(tmp_path, max_tokens):
    write_parquet(tmp_path / "a.parquet", TEXTS)
    whole = prepare(files_config(tmp_path / "a.parquet", holdout_fraction=0.5), BYTES)
    part = prepare(
        files_config(tmp_path / "a.parquet", holdout_fraction=0.5, max_tokens=max_tokens), BYTES
    )
    assert part.train[:].tolist() == whole.train[:max_tokens].tolist()
    assert part.validation[:].tolist() == whole.validation[: len(part.validation)].tolist()


# -- held-out documents ------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(TEXTS[:30]), max_size=200), st.floats(0.01, 0.99))
def test_equal_documents_never_stand_on_both_sides(texts, fraction):
    corpus = Corpus({"train": lambda: iter(texts)}, fraction, None, {})
    sides: dict[str, set[str]] = {"train": set(), "validation": set()}
    for side, text in corpus.documents("train"):
        sides[side].add(text)
    assert not sides["train"] & sides["validation"]
    assert sides["train"] | sides["validation"] == set(texts)
    assert set(corpus.train_texts()) == sides["train"]


def test_about_the_asked_share_is_held_out_whatever_the_order(tmp_path):
    texts = [f"text {number}" for number in range(4000)]
    sides = []
    for order in (texts, texts[::-1]):
        corpus = Corpus({"train": lambda order=order: iter(order)}, 0.2, None, {})
        sides.append({text for side, text in corpus.documents("train") if side == "validation"})
    assert sides[0] == sides[1]
    assert 700 < len(sides[0]) < 900


def test_another_validation_split_may_be_named(tmp_path):
    write_parquet(tmp_path / "d" / "train.parquet", TEXTS)
    write_parquet(tmp_path / "d" / "validation.parquet", ["not this"])
    write_parquet(tmp_path / "d" / "test.parquet", ["this"])
    prepared = prepare(files_config(tmp_path / "d", validation_split="test"), BYTES)
    assert held_out(prepared) == ["this"]
    assert "not this" not in documents_of(
        prepare(files_config(tmp_path / "d", validation_split=None), BYTES), "train"
    )


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_what_was_prepared_is_found_again_without_reading_or_network(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", TEXTS)
    first = prepare(files_config(tmp_path / "a.parquet"), BYTES)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("must not be called")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(blocks_module, "open_corpus", refuse)
    again = prepare(
        files_config(tmp_path / "a.parquet", name="other", seed=5),
        replace(BYTES, name="x"),
        seq_len=16,
    )
    assert again.folder == first.folder
    assert again.data_sha256 == first.data_sha256
    assert again.corpus["name"] == "other"


def test_every_key_that_changes_tokens_changes_the_folder(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    data = files_config(path)
    folders = [
        prepare(data, tokenizer).folder for tokenizer in (BYTES, BPE, replace(BPE, vocab_size=310))
    ]
    folders.append(prepare(replace(data, holdout_fraction=0.5), BYTES).folder)
    write_parquet(path, TEXTS[:100])
    folders.append(prepare(data, BYTES).folder)
    assert len(set(folders)) == 5


def test_the_data_hash_follows_the_tokens_and_not_the_place(tmp_path):
    hashes = []
    for name, texts in (("a", TEXTS), ("b", TEXTS), ("c", TEXTS[1:])):
        write_parquet(tmp_path / name / "x.parquet", texts)
        hashes.append(
            prepare(
                files_config(tmp_path / name, cache_dir=str(tmp_path / f"cache_{name}")), BYTES
            ).data_sha256
        )
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_damaged_folder_is_named_and_not_read(tmp_path):
    data = files_config(write_parquet(tmp_path / "a.parquet", TEXTS))
    prepared = prepare(data, BYTES)
    block = prepared.folder / "train.bin"
    whole = block.read_bytes()
    block.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(
        DataError, match=r"train\.bin is damaged in bytes 0 to [\d,]+; remove .* and prepare again"
    ):
        prepare(data, BYTES).verify()
    block.write_bytes(whole[:-2])
    with pytest.raises(
        DataError, match=rf"{block} is too short or too long; remove {prepared.folder} and"
    ):
        prepare(data, BYTES)
    block.write_bytes(whole)
    prepared.tokenizer_file.write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json has changed"):
        prepare(data, BYTES)


CHILD = """
import json, re, sys
from pathlib import Path
import rope_exp.data
heavy = {"torch", "datasets", "transformers", "pyarrow"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from rope_exp.config import DataConfig, TokenizerConfig
from rope_exp.data import blocks, prepare
blocks.BATCH_BYTES = 1 << 16  # so that a small corpus is many batches
make = blocks._make
def counted(*arguments):
    with open(sys.argv[2], "a") as file:
        file.write("made\\n")
    make(*arguments)
blocks._make = counted
data, tokenizer = json.loads(sys.argv[1])
print(prepare(DataConfig(**data), TokenizerConfig(**tokenizer)).data_sha256)
assert "torch" not in sys.modules
status = Path("/proc/self/status")  # getrusage would report the parent's peak, from before exec
print(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1] if status.exists() else 0)
"""


def start_child(path: Path, log: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    arguments = json.dumps([dataclasses.asdict(files_config(path)), dataclasses.asdict(BYTES)])
    command = [sys.executable, "-W", "error", "-c", CHILD, arguments, str(log)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_two_processes_at_once_prepare_once_and_neither_loads_torch(tmp_path):
    path = tmp_path / "data"  # a folder of JSON: datasets finds its splits and reads it
    path.mkdir()
    (path / "train.jsonl").write_text(
        "".join(json.dumps({"text": text * 500}) + "\n" for text in TEXTS)
    )
    children = [start_child(path, tmp_path / "log") for _ in range(2)]
    outcomes = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], outcomes
    assert len({stdout.split()[0] for stdout, _ in outcomes}) == 1
    assert (tmp_path / "log").read_text() == "made\n"
    assert sum("another process prepares" in stderr for _, stderr in outcomes) == 1


def test_a_killed_preparation_is_never_read_and_the_next_one_succeeds(tmp_path, cache):
    path = write_parquet(tmp_path / "a.parquet", [text * 500 for text in TEXTS])
    child = start_child(path, tmp_path / "log")
    deadline = time.monotonic() + 30
    while not any(file.stat().st_size for file in cache.glob(".*/tokenizer.json")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    [hidden] = left_in(cache)
    assert hidden.startswith(".")
    prepared = prepare(files_config(path), BYTES)
    prepared.verify()
    assert left_in(cache) == [prepared.folder.name]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_stays_flat_when_the_corpus_grows_tenfold(tmp_path, monkeypatch):
    monkeypatch.setenv(
        "RAYON_NUM_THREADS", "1"
    )  # the allocator's waste varies with the threads' timing
    peaks = []
    for times in (1, 10):
        path = write_parquet(
            tmp_path / f"{times}.parquet",
            [text * 300 for text in TEXTS] * times,
            row_group_size=200,
        )
        stdout, stderr = (child := start_child(path, tmp_path / "log")).communicate()
        assert child.returncode == 0, stderr
        peaks.append(int(stdout.split()[1]) / 1024)
    assert peaks[1] < peaks[0] + 16, f"{peaks} MiB: the text grew by 35 MB"


# -- bad input ---------------------------------------------------------------------------------------------------------


def write_files(root: Path, contents: Mapping[str, bytes]) -> Path:
    root.mkdir()
    for name, content in contents.items():
        (root / name).write_bytes(content)
    return root


def parquet_bytes(column: str, values: list[object]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({column: values}), sink)
    return sink.getvalue().to_pybytes()


GOOD = parquet_bytes("text", TEXTS)
BROKEN = GOOD[:200] + bytes(400) + GOOD[600:]  # footer whole, pages not
BAD_INPUT = {
    "no usable file": (
        {"a.csv": b"a"},
        {},
        r"data\.path=.*: holds no file that ends in \.parquet, \.jsonl",
    ),
    "an empty folder": ({}, {}, r"data\.path=.*: holds no file"),
    "two kinds": (
        {"a.txt": b"a", "b.parquet": GOOD},
        {},
        r"holds parquet and text files; choose one",
    ),
    "an empty text": ({"a.txt": b""}, {}, r"data\.text_column=text: the corpus holds no text"),
    "an empty table": (
        {"a.parquet": parquet_bytes("text", [])},
        {},
        r"data\.text_column=text: the corpus holds no text",
    ),
    "another column": (
        {"a.parquet": GOOD},
        {"text_column": "body"},
        r"data\.text_column=body: is no column; there are text",
    ),
    "another key": (
        {"a.jsonl": b'{"x": "a"}\n'},
        {},
        r"data\.text_column=text: is no column; there are x",
    ),
    "numbers": (
        {"a.parquet": parquet_bytes("text", [1, 2])},
        {},
        r"data\.text_column=text: holds .*int64.*, not text",
    ),
    "lists": (
        {"a.parquet": parquet_bytes("text", [["a"]])},
        {},
        r"data\.text_column=text: holds .*, not text",
    ),
    "mixed values": (
        {"a.jsonl": b'{"text": "a"}\n{"text": 1}\n'},
        {},
        r"data\.text_column=text: holds Json",
    ),
    "no values": (
        {"a.parquet": parquet_bytes("text", [None, "", None])},
        {},
        "text_column=text: the corpus holds no t",
    ),
    "latin-1": (
        {"a.txt": b"fine", "b.txt": b"caf\xe9"},
        {},
        r"data\.path=.*b\.txt: is not UTF-8 text",
    ),
    "broken JSON": (
        {"a.jsonl": b'{"text": "a"}\n' * 9, "b.jsonl": b'{"text": \n'},
        {},
        r"data\.path=.*b\.jsonl",
    ),
    "no Parquet": (
        {"a.parquet": GOOD, "b.parquet": b"PAR1 no"},
        {},
        r"b\.parquet: cannot be read as Parquet",
    ),
    "broken Parquet": (
        {"a.parquet": GOOD, "b.parquet": BROKEN},
        {},
        r"b\.parquet: cannot be read as Parquet",
    ),
    "broken gzip": ({"a.txt.gz": gzip.compress(b"text" * 999)[:30]}, {}, r"a\.txt\.gz"),
    "no train": (
        {"test.parquet": GOOD, "validation.parquet": GOOD},
        {},
        r"has no split named train; it has test, valid",
    ),
    "train as validation": (
        {"a.parquet": GOOD},
        {"validation_split": "train"},
        r"data\.validation_split=train",
    ),
    "text cut by nothing": (
        {"a.txt": b"a"},
        {"sample_by": None},
        r"data\.sample_by=null: must be document, paragraph",
    ),
    "one document": (
        {"a.txt": b"one text"},
        {},
        r"data\.sample_by=document: leaves no document for (train|validation)",
    ),
    "nothing held out": (
        {"a.parquet": GOOD},
        {"holdout_fraction": 1e-9},
        r"data\.holdout_fraction=1e-09: leaves no",
    ),
    "too short": (
        {"a.parquet": GOOD},
        {},
        r"train\.seq_len=100000: a window needs 100001 tokens and the corpus has \d+",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_sentence_with_its_key_and_leaves_nothing(tmp_path, cache, case):
    contents, changes, message = BAD_INPUT[case]
    data = files_config(write_files(tmp_path / "data", contents), **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(data, BYTES, seq_len=100_000)
    assert "\n" not in str(caught.value)
    assert left_in(cache) == []


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path=.*nowhere: there is no such file or folder"):
        prepare(files_config(tmp_path / "nowhere"), BYTES)


def test_names_that_look_like_patterns_are_read_as_names(tmp_path):
    path = write_parquet(tmp_path / "what? [1]*.parquet", TEXTS)
    write_parquet(tmp_path / "whatX 1.parquet", ["not this"] * 50)
    prepared = prepare(files_config(path), BYTES)
    assert sorted(documents_of(prepared, "train") + held_out(prepared)) == sorted(TEXTS)


def test_blocks_that_were_made_are_too_short_for_a_longer_run(tmp_path):
    data = files_config(write_parquet(tmp_path / "a.parquet", TEXTS))
    prepared = prepare(data, BYTES, seq_len=16)
    message = rf"train\.seq_len=5000: .* has {len(prepared.validation)} for validation"
    with pytest.raises(ConfigError, match=message):
        prepare(data, BYTES, seq_len=5000)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    data = files_config(
        write_parquet(tmp_path / "a.parquet", TEXTS), cache_dir=str(tmp_path / "file")
    )
    with pytest.raises(ConfigError, match=r"data\.cache_dir=.*file: cannot be written"):
        prepare(data, BYTES)


def test_too_little_space_is_seen_before_the_start(tmp_path, cache, monkeypatch):
    data = files_config(write_parquet(tmp_path / "a.parquet", TEXTS))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskError, match=rf"{cache}.* needs [\d,]+ bytes and 1,000 are free"):
        prepare(data, BYTES)
    assert left_in(cache) == []


def test_space_that_runs_out_on_the_way_is_said_and_given_back(tmp_path, cache, monkeypatch):
    data = files_config(write_parquet(tmp_path / "a.parquet", TEXTS))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module.TokenFile, "write", full)
    with pytest.raises(
        DiskError,
        match=rf"{cache}: what is prepared of data=mine, at least, needs [\d,]+ bytes and [\d,]+ are",
    ):
        prepare(data, BYTES)
    assert left_in(cache) == []


def test_files_that_change_while_they_are_read_are_not_kept(tmp_path, cache, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    write = blocks_module.write_tokens

    def disturbed(*arguments: object) -> object:
        os.utime(path, ns=(1, 1))
        return write(*arguments)

    monkeypatch.setattr(blocks_module, "write_tokens", disturbed)
    with pytest.raises(DataError, match="changed while they were read"):
        prepare(files_config(path), BYTES)
    assert left_in(cache) == []


# -- the hub -----------------------------------------------------------------------------------------------------------


def hub_config(path: Path | str, **changes: object) -> DataConfig:
    config = DataConfig(
        "hub", "hub", str(path), "sub", "abc", "text", None, "validation", 0.1, None, None, None
    )
    return replace(config, **changes)


def test_a_dataset_of_the_hub_is_streamed_at_its_pinned_revision(tmp_path, monkeypatch):
    import datasets

    write_parquet(tmp_path / "d" / "train.parquet", TEXTS)
    write_parquet(tmp_path / "d" / "validation.parquet", TEXTS[:9])
    load, calls = datasets.load_dataset, []

    def fake(*arguments: object, **options: object) -> object:
        calls.append((arguments, options))
        return load(str(tmp_path / "d"), streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", fake)
    prepared = prepare(hub_config("owner/corpus", max_tokens=1000), BYTES)
    [(arguments, options)] = calls
    assert arguments == ("owner/corpus", "sub")
    assert options.items() > {"revision": "abc", "streaming": True}.items()
    assert len(prepared.train) == 1000
    assert held_out(prepared) == TEXTS[:9]
    assert prepared.corpus["revision"] == "abc"


def test_a_network_that_fails_is_one_sentence(cache, monkeypatch):
    import datasets

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("could not\nreach the hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        DataError, match=r"data\.path=owner/corpus: .*could not reach the hub"
    ) as caught:
        prepare(hub_config("owner/corpus"), BYTES)
    assert caught.value.__suppress_context__
    assert left_in(cache) == []


def test_a_network_that_fails_on_the_way_leaves_nothing(tmp_path, cache, monkeypatch):
    import datasets

    class Stream:
        features = None

        def with_format(self, _: str) -> "Stream":
            return self

        def iter(self, batch_size: int):
            yield pa.table({"text": TEXTS})
            raise ConnectionError("reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": Stream()})
    with pytest.raises(DataError, match="reading stopped: reset by peer"):
        prepare(hub_config("owner/corpus"), BYTES)
    assert left_in(cache) == []


# -- the command line, and real text -----------------------------------------------------------------------------------


def test_the_command_line_prepares_and_says_what_it_made(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [text * 20 for text in TEXTS])
    command = [
        sys.executable,
        str(ROOT / "scripts" / "prepare_data.py"),
        "data=files",
        "tokenizer=bytes",
    ]
    good = subprocess.run([*command, f"data.path={path}"], capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    assert "200" not in good.stderr
    assert "vocabulary: 257" in good.stdout
    bad = subprocess.run(
        [*command, f"data.path={tmp_path / 'none'}"], capture_output=True, text=True
    )
    assert bad.returncode == 2
    assert bad.stderr == f"error: data.path={tmp_path / 'none'}: there is no such file or folder\n"


def test_real_text_goes_through_unchanged():
    folder = os.environ.get("ROPE_EXP_TEXT")
    if not folder:
        pytest.skip("ROPE_EXP_TEXT names no folder of real text")
    data = files_config(Path(folder) / "tinystories-sample", validation_split="validation")
    prepared = prepare(data, replace(BPE, vocab_size=2048, train_bytes=500_000), seq_len=512)
    table = pq.read_table(Path(folder) / "tinystories-sample" / "train.parquet")
    assert documents_of(prepared, "train") == table["text"].to_pylist()
    assert prepared.corpus["text_bytes"]["train"] == 876_305
    assert open_corpus(data).splits.keys() == {"train", "validation"}
