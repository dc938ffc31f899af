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
from hypothesis import given, settings
from hypothesis import strategies as st
from support.configs import left_in
from support.corpora import BYTES, data_config, tokenizer_config
from support.corpora import PLAIN_TEXTS as TEXTS
from support.refused import REFUSALS, refused

from rope_exp.errors import DataError
from rope_exp.prepare import prepare
from rope_exp.sections import DataConfig
from rope_exp.tokenizer import encode, load_tokenizer, train_bpe

Harms = list[tuple[str, float, bytes]]
NAMES = ["meta.json", "tokenizer.json", "train.bin", "validation.bin"]

quick = settings(max_examples=20, derandomize=True)
long = settings(max_examples=2000, derandomize=True)
harms = st.lists(
    st.tuples(
        st.sampled_from(["flip", "flip", "flip", "cut", "insert", "remove"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def efforts(few: settings, many: settings) -> pytest.MarkDecorator:
    """Run a test on few examples, and on many in `make torture`."""
    slow = pytest.param(many, id="many", marks=pytest.mark.torture)
    return pytest.mark.parametrize("effort", [pytest.param(few, id="few"), slow])


def harmed(content: bytes, harms: Harms) -> bytes:
    for kind, share, junk in harms:
        place = int(share * len(content))
        before = content[:place]
        after = content[place:]
        if kind == "flip" and after:
            content = before + bytes([after[0] ^ junk[0] or 1]) + after[1:]
        elif kind == "cut":
            content = before
        elif kind == "insert":
            content = before + junk + after
        elif kind == "remove":
            content = before + after[len(junk) :]
    return content


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


def survive(path: Path, content: bytes) -> None:
    """Prepare a corpus of one file, which must be read or refused in one line."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    cache = path.parent.parent / "cache"
    data = data_config(path=path, sample_by="line", holdout_fraction=0.3, cache_dir=str(cache))
    try:
        prepare(data, BYTES)
    except REFUSALS as error:
        assert "\n" not in str(error)
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@efforts(quick, long)
@pytest.mark.parametrize("name", VALID)
def test_a_harmed_corpus_file_is_read_or_refused(place: Path, name: str, effort: settings) -> None:
    def check(harms: Harms) -> None:
        survive(place / "corpus" / name, harmed(VALID[name], harms))

    effort(given(harms)(check))()


@pytest.fixture(scope="module")
def fine(place: Path) -> DataConfig:
    """Prepare a corpus of plain text, and return its config."""
    path = place / "fine.txt"
    path.write_text("\n".join(TEXTS))
    cache = str(place / "fine")
    data = data_config(path=path, sample_by="line", holdout_fraction=0.3, cache_dir=cache)
    prepare(data, BYTES)
    return data


def survive_prepared(fine: DataConfig, name: str, harms: Harms) -> None:
    """Damage a prepared file: the folder must open unchanged, or be refused by name."""
    prepared = prepare(fine, BYTES)
    path = prepared.folder / name
    content = path.read_bytes()
    path.write_bytes(harmed(content, harms))
    try:
        found = prepare(fine, BYTES)
        assert (found.data_sha256, found.corpus) == (prepared.data_sha256, prepared.corpus)
    except REFUSALS as error:
        assert str(path.parent) in str(error)
        assert "\n" not in str(error)
    finally:
        path.write_bytes(content)


@efforts(quick, long)
@pytest.mark.parametrize("name", NAMES)
def test_a_harmed_prepared_folder_is_as_it_was_or_refused(
    fine: DataConfig, name: str, effort: settings
) -> None:
    def check(harms: Harms) -> None:
        survive_prepared(fine, name, harms)

    effort(given(harms)(check))()


# -- tokenizers ------------------------------------------------------------------------------------

SMALL = tokenizer_config("bpe", vocab_size=300, train_bytes=20_000)
BPE = train_bpe(SMALL, TEXTS).to_str().encode()


@efforts(settings(quick, max_examples=200), settings(long, max_examples=20_000))
def test_a_harmed_tokenizer_is_read_or_refused(place: Path, effort: settings) -> None:
    path = place / "tokenizer.json"

    def check(harms: Harms) -> None:
        path.write_bytes(harmed(BPE, harms))
        try:
            encode(load_tokenizer(path), TEXTS)
        except REFUSALS as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)

    effort(given(harms)(check))()


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


@pytest.mark.parametrize("case", ["a panic", pytest.param("a pickle", marks=pytest.mark.torture)])
def test_a_hostile_pretrained_folder_is_refused(
    folder: Path, tmp_path: Path, cache: Path, case: str
) -> None:
    pretrained = tmp_path / "pretrained"
    pretrained.mkdir()
    (pretrained / "tokenizer.json").write_bytes(HOSTILE_TOKENIZERS[case])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (pretrained / "tokenizer_config.json").write_text(json.dumps(settings))
    with refused(str(pretrained)):
        prepare(data_config(path=folder), tokenizer_config("pretrained", path=str(pretrained)))
    assert left_in(cache) == []
