"""Tests of preparation: a corpus is prepared once, found again, and complete or absent."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import left_in
from support.corpora import (
    BPE,
    BYTES,
    TEXTS,
    all_documents,
    corpus_of,
    data_config,
    start_python,
    write_parquet,
)
from support.refused import refused
from tokenizers import Tokenizer

from rope_exp import prepare as prepare_module
from rope_exp.commands.prepare import main
from rope_exp.corpus import BLOCK_BYTES, SIDES, open_prepared, token_dtype
from rope_exp.errors import ConfigError, DataError
from rope_exp.files import DiskError, json_sha256
from rope_exp.prepare import prepare, stdlib_files
from rope_exp.sections import TokenizerConfig

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a corpus of one Parquet file."""
    return write_parquet(tmp_path / "a.parquet", TEXTS)


def test_what_was_prepared_is_found_without_reading_or_network(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the name matter, or the place, or what becomes of documents in rows."""
    first = prepare(data_config(path=path), BYTES)
    copied = tmp_path / "copied" / path.name
    copied.parent.mkdir()
    shutil.copy2(path, copied)
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setattr("rope_exp.corpora.files.open_corpus", None)
    changes: dict[str, Any] = {
        "reset_positions": True,
        "document_mask": True,
        "random_start": 256,
    }
    data = data_config(path=copied, name="other", seed=5, **changes)
    again = prepare(data, dataclasses.replace(BYTES, name="x"), seq_len=16)
    assert again.folder == first.folder
    assert again.data_sha256 == first.data_sha256
    assert again.corpus["name"] == "other"
    assert again.corpus["path"] == str(copied)


def test_every_key_that_changes_tokens_changes_the_folder(path: Path) -> None:
    data = data_config(path=path)
    tokenizers = (BYTES, BPE, dataclasses.replace(BPE, vocab_size=310))
    folders = [prepare(data, tokenizer).folder for tokenizer in tokenizers]
    folders.append(prepare(data_config(path=path, holdout_fraction=0.5), BYTES).folder)
    write_parquet(path, TEXTS[:100])
    folders.append(prepare(data, BYTES).folder)
    assert len(set(folders)) == 5


def test_the_format_of_folders_is_the_one_that_was_published(tmp_path: Path) -> None:
    """Golden values: caches and records of other versions must keep their meaning."""
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(100)))
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    prepared = prepare(data_config(path=tmp_path / "a.txt", sample_by="line"), BYTES)
    assert prepared.folder.name == "f852294bec9f2915"
    assert prepared.data_sha256 == (
        "7bcf245dffb050fb46ac45a7b7745f481c7b4ff27aeac9de26084f8226549272"
    )


def test_a_prepared_folder_survives_a_power_cut(
    path: Path, tmp_path: Path, synced: list[int]
) -> None:
    """Every file is synced, and so is every folder that holds a new name."""
    top = tmp_path / "new"
    folder = prepare(data_config(path=path, cache_dir=str(top / "cache")), BYTES).folder
    made = [tmp_path, top, top / "cache", folder, *folder.iterdir()]
    assert [each for each in made if each.stat().st_ino not in synced] == []
    # The folder gets its name last.
    assert synced[-1] == (top / "cache").stat().st_ino


# -- processes -------------------------------------------------------------------------------------

CHILD = """
import json, sys
from rope_exp import prepare
from support.corpora import BYTES, data_config
make = prepare._make
def counted(*arguments):
    print("made")
    make(*arguments)
prepare._make = counted
print(prepare.prepare(data_config(path=json.loads(sys.argv[1])), BYTES).data_sha256)
"""


def test_two_processes_prepare_once(tmp_path: Path) -> None:
    """The corpus is a folder of JSON, whose splits datasets finds."""
    path = tmp_path / "data"
    path.mkdir()
    line = '{"text": "' + "words and more words " * 1000 + '%d"}\n'
    (path / "train.jsonl").write_text("".join(line % number for number in range(200)))
    children = [start_python(CHILD, str(path), flags=["-W", "error"]) for _ in range(2)]
    outcomes = [child.communicate() for child in children]
    assert [child.returncode for child in children] == [0, 0], outcomes
    assert len({stdout.split()[-1] for stdout, _ in outcomes}) == 1
    assert sum("made" in stdout for stdout, _ in outcomes) == 1
    assert sum("another process prepares" in stderr for _, stderr in outcomes) == 1


def test_a_killed_preparation_is_never_read(tmp_path: Path, empty_cache: Path) -> None:
    """The next preparation succeeds, and removes the leftover."""
    path = write_parquet(tmp_path / "a.parquet", [text * 400 for text in TEXTS])
    child = start_python(CHILD, str(path))
    while not any(file.stat().st_size for file in empty_cache.glob(".*/tokenizer.json")):
        assert child.poll() is None, child.communicate()
        time.sleep(0.005)
    child.kill()
    child.communicate()

    [hidden] = left_in(empty_cache)
    assert hidden.startswith(".")
    prepared = prepare(data_config(path=path), BYTES)
    assert left_in(empty_cache) == [prepared.folder.name]


def test_the_command_line_prepares_and_says_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_parquet(tmp_path / "a.parquet", [text * 20 for text in TEXTS])
    words = ["data=files", "tokenizer=bytes"]
    command = [sys.executable, "-m", "rope_exp", "prepare", *words, f"data.path={path}"]
    good = subprocess.run(command, capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    assert "vocabulary: 257" in good.stdout
    assert main([*words, f"data.path={path}", "+experiment=nine"]) == 0
    assert capsys.readouterr().out == good.stdout

    missing = f"data.path={tmp_path / 'none'}"
    with refused(f"{missing}: there is no such file or folder", by=ConfigError):
        main([*words, missing])


# -- refusals --------------------------------------------------------------------------------------


def test_a_corpus_without_a_whole_window_is_refused(path: Path) -> None:
    """It stays prepared, for shorter sequences."""
    words = "train.seq_len=100000: a window needs 100001 tokens and the corpus has "
    with refused(words, by=ConfigError):
        prepare(data_config(path=path), BYTES, seq_len=100_000)
    prepare(data_config(path=path), BYTES, seq_len=16)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("data.cache_dir=", "file: cannot be written", by=ConfigError):
        prepare(data_config(path=path, cache_dir=str(tmp_path / "file")), BYTES)


def test_space_that_runs_out_on_the_way_is_given_back(
    path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare_module, "write_tokens", full)
    what = f"{empty_cache}: preparing data=mine needs more than is free ("
    with refused(what, " bytes, ", by=DiskError):
        prepare(data_config(path=path), BYTES)
    assert left_in(empty_cache) == []


def test_files_that_change_while_they_are_read_are_not_kept(
    path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = prepare_module.write_tokens

    def disturbed(*arguments: Any) -> Any:
        os.utime(path, ns=(1, 1))
        return write(*arguments)

    monkeypatch.setattr(prepare_module, "write_tokens", disturbed)
    with refused("changed while they were read", by=DataError):
        prepare(data_config(path=path), BYTES)
    assert left_in(empty_cache) == []


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_tokens_equal_those_of_the_plain_library(
    tmp_path: Path, tokenizer: TokenizerConfig
) -> None:
    write_parquet(tmp_path / "data" / "train-00000.parquet", TEXTS)
    write_parquet(tmp_path / "data" / "validation.parquet", TEXTS[:20])
    write_parquet(tmp_path / "data" / "test.parquet", ["never read"] * 20)
    prepared = prepare(data_config(path=tmp_path / "data"), tokenizer, seq_len=64)

    plain = Tokenizer.from_str(prepared.tokenizer_json)
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


@pytest.mark.parametrize("max_tokens", [200, 3000])
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


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "meta.json", "tokenizer.json"])
def test_a_damaged_folder_is_refused(tmp_path: Path, name: str) -> None:
    """The digest is of blocks, as records of earlier versions hold it; a flipped bit is found."""
    path = write_parquet(tmp_path / "a.parquet", [text * 20 for text in TEXTS])
    data = data_config(path=path, holdout_fraction=0.5)
    prepared = prepare(data, BYTES)
    digests = []
    for side in SIDES:
        content = (prepared.folder / f"{side}.bin").read_bytes()
        parts = [content[n : n + BLOCK_BYTES] for n in range(0, len(content), BLOCK_BYTES)]
        assert len(parts) > 3
        digests.append("".join(hashlib.sha256(part).hexdigest() for part in parts))
    tokenizer = hashlib.sha256(prepared.tokenizer_json.encode()).hexdigest()
    assert prepared.data_sha256 == json_sha256([tokenizer, "uint16", *digests])

    damaged = bytearray((prepared.folder / name).read_bytes())
    damaged[-9] ^= 1
    (prepared.folder / name).write_bytes(damaged)
    words = f"{prepared.folder} is damaged: ", "; remove it and prepare again"
    with refused(*words, by=DataError):
        prepare(data, BYTES)
    (prepared.folder / name).unlink()
    for verifies in (True, False):
        with refused(*words, by=DataError):
            open_prepared(prepared.folder, data, verifies=verifies)


def test_a_rank_that_does_not_verify_compares_what_is_small(path: Path) -> None:
    """It finds facts that were changed, and a file that was cut, but no flipped bit of a token."""
    data = data_config(path=path)
    folder = prepare(data, BYTES).folder
    tokens = folder / "train.bin"
    content = tokens.read_bytes()
    tokens.write_bytes(b"\1" + content[1:])
    assert open_prepared(folder, data, verifies=False).tokens["train"][0] % 256 == 1
    with refused("its files are not those that were prepared", by=DataError):
        open_prepared(folder, data, verifies=True)

    tokens.write_bytes(content[:-2])
    with refused(f"train.bin has {len(content) - 2:,} bytes", by=DataError):
        open_prepared(folder, data, verifies=False)
    meta = folder / "meta.json"
    meta.write_text(meta.read_text().replace('"end_id": 256', '"end_id": 255'))
    with refused("meta.json has changed", by=DataError):
        open_prepared(folder, data, verifies=False)

    shutil.rmtree(folder)
    with refused(f"{folder} is gone; the same command prepares the corpus again", by=DataError):
        open_prepared(folder, data, verifies=False)


def test_ids_are_as_wide_as_the_vocabulary_asks() -> None:
    assert [token_dtype(size).itemsize for size in (257, 65536, 65537)] == [2, 2, 4]


# -- sides and the stdlib --------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["", *TEXTS[:30]]), max_size=200), st.floats(0.01, 0.99))
def test_equal_documents_never_are_on_both_sides(texts: list[str], fraction: float) -> None:
    """Empty documents are passed over."""
    documents = [*corpus_of(texts, holdout_fraction=fraction).documents("train")]
    assert [text for _, text in documents] == [*filter(None, texts)]
    assert len(set(documents)) == len({*texts} - {""})


def test_about_the_asked_share_is_held_out() -> None:
    texts = [f"text {number}" for number in range(4000)]
    documents = corpus_of(texts, holdout_fraction=0.2).documents("train")
    assert 700 < sum(side == "validation" for side, _ in documents) < 900


def test_the_library_without_tests_and_build_output() -> None:
    files = stdlib_files()
    assert files["json/__init__.py"] == Path(json.__file__)
    assert {"json/decoder.py", "os.py", "asyncio/base_events.py"} <= files.keys()
    for name in files:
        assert not {"test", "site-packages"} & set(name.split("/"))
        assert "_sysconfigdata" not in name
        assert not name.startswith("config-")


def test_what_cannot_be_decoded_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    for number in range(40):
        (library / f"m{number}.py").write_text(f"x = {number}\n" * 20)
    (library / "bad.py").write_bytes(b"x = '\xff'\n")
    (library / "latin.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))

    prepared = prepare(data_config(kind="stdlib"), BYTES)
    assert prepared.corpus["files_not_decoded"] == 1
    assert prepared.corpus["python"] == sys.version.split()[0]
    documents = all_documents(prepared)
    assert "# coding: latin-1\nx = 'é'\n" in documents
    assert len(documents) == 41
