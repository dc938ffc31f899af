"""Corpora made to harm: refused in one sentence or read as the text that they are, within bounded memory and time."""

import ast
import dataclasses
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.configs import REPOSITORY, left_in

from rope_exp.config.sections import DataConfig, TokenizerConfig
from rope_exp.data import files as files_module
from rope_exp.data.prepare import prepare
from rope_exp.data.tokenizer import encode, load_tokenizer, train_bpe
from rope_exp.system.errors import ConfigError, DataError, RecordError

BYTES = TokenizerConfig("bytes", "bytes", None, None, None, None)
TEXTS = [f"Document {number}: plain words of number {number * number}." for number in range(60)]
OUR_ERRORS = (ConfigError, DataError, RecordError)


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
        0.3,
        None,
        None,
        None,
    )
    return dataclasses.replace(config, **changes)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ROPE_EXP_CACHE", str(folder))
    return folder


def refused(data: DataConfig, tokenizer: TokenizerConfig = BYTES) -> str:
    """The one sentence that refuses a corpus."""
    with pytest.raises(OUR_ERRORS) as caught:
        prepare(data, tokenizer)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- bombs, in a process of their own ----------------------------------------------------------------------------------

CHILD = """
import json, re, sys
from pathlib import Path
from rope_exp.config import DataConfig, TokenizerConfig
from rope_exp.data import prepare
tokenizer = TokenizerConfig("bytes", "bytes", None, None, None, None)
for data in json.loads(sys.argv[1]):
    try:
        kind, what = "read", str(prepare(DataConfig(**data), tokenizer).corpus["documents"])
    except Exception as error:
        kind, what = type(error).__name__, str(error)
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
    print(json.dumps([kind, what, peak]), flush=True)
"""


def in_a_child(*corpora: DataConfig) -> list[tuple[str, str]]:
    """What became of each preparation, in a process that takes under 3 GiB; of as many as it lived for."""
    arguments = json.dumps([dataclasses.asdict(data) for data in corpora])
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    outcomes = [json.loads(line) for line in child.stdout.splitlines()]
    assert all(peak_mib < 3 * 1024 for _, _, peak_mib in outcomes), outcomes
    return [(kind, what) for kind, what, _ in outcomes]


def huge_page(path: Path) -> None:
    """A gigabyte of one letter, in some 30 KB."""
    table = pa.table({"text": ["a" * 1_000_000_000, "b"]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def one_text_in_a_million_rows(path: Path, text: str) -> None:
    rows = pa.array([0] * 1_000_000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(rows, pa.array([text]))})
    pq.write_table(table, path, compression="zstd", write_statistics=False, store_schema=False)


def gzip_of(path: Path, piece: bytes, count: int) -> None:
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(count):
            file.write(piece)


def incompressible(num_chars: int) -> str:
    source = random.Random(0)
    return " ".join(source.randbytes(32).hex() for _ in range(num_chars // 65))


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
    "zeros": (
        "a.txt.gz",
        lambda path: gzip_of(path, bytes(1 << 20), 200),
        "unpacks to over 200 times its size",
    ),
    "lines": (
        "a.jsonl.gz",
        lambda path: gzip_of(path, b'{"text": "a"}\n' * 80_000, 150),
        "unpacks to over 200 times",
    ),
    "one long line": (
        "a.jsonl",
        lambda path: path.write_bytes(b'{"text": "' + b"ab cd " * 50_000_000),
        r"holds a document of 26\d,\d+,\d+ characters or more",
    ),
    "a word of 100 MB": (
        "a.txt",
        lambda path: path.write_bytes(b"a" * 100_000_000),
        "100,000,000 characters on end",
    ),
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
    [(kind, said)] = in_a_child(files_config(tmp_path / name))
    assert kind == "ConfigError", said
    assert said.startswith(f"data.path={tmp_path / name}: ")
    assert re.search(message, said), said
    assert left_in(cache) == []


def varint(number: int) -> bytes:
    number, found = number << 1, b""
    while number > 127:
        number, found = number >> 7, found + bytes([number & 127 | 128])
    return found + bytes([number])


@pytest.mark.parametrize("case", ["rows", "bytes"])
def test_a_footer_that_claims_the_absurd_is_refused_before_space_is_asked_for(
    tmp_path, cache, case
):
    # A footer of the right form, with 2^62 - 1 in it: its fields are of that many bytes from the start.
    path = tmp_path / "a.parquet"
    path.write_bytes(
        absurd_parquet(**{"rows": {"rows": 2**62 - 1}, "bytes": {"unpacked": 2**62 - 1}}[case])
    )
    said = refused(files_config(path))
    assert said.startswith(
        f"data.path={path}: claims 4,611,686,018,427,387,903 {'rows' if case == 'rows' else 'bytes'}"
    )
    assert left_in(cache) == []


def absurd_parquet(rows: int = 1, unpacked: int = 30) -> bytes:
    """A Parquet file of one text, its footer written by hand in Thrift's compact protocol."""

    def i32(number: int) -> bytes:
        return varint(number)

    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    root = b"\x48" + text(b"schema") + b"\x15" + i32(1) + b"\x00"
    leaf = (
        b"\x15" + i32(6) + b"\x25" + i32(1) + b"\x18" + text(b"text") + b"\x25" + i32(0) + b"\x00"
    )
    column = (
        b"\x15" + i32(6) + b"\x19\x15" + i32(0) + b"\x19\x18" + text(b"text") + b"\x15" + i32(0)
        + b"\x16" + varint(rows) + b"\x16" + varint(unpacked) + b"\x16" + varint(30) + b"\x26" + varint(4) + b"\x00"
    )  # fmt: skip
    group = (
        b"\x19\x1c"
        + b"\x26"
        + varint(0)
        + b"\x1c"
        + column
        + b"\x00"
        + b"\x16"
        + varint(30)
        + b"\x16"
        + varint(rows)
        + b"\x00"
    )
    footer = (
        b"\x15"
        + i32(1)
        + b"\x19\x2c"
        + root
        + leaf
        + b"\x16"
        + varint(rows)
        + b"\x19\x1c"
        + group
        + b"\x00"
    )
    return b"PAR1" + bytes(30) + footer + len(footer).to_bytes(4, "little") + b"PAR1"


# -- what a folder may hold --------------------------------------------------------------------------------------------


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that no corpus may read."""
    path = tmp_path / "secret.txt"
    path.write_text("the secret\n" * 50)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of plain text that is fine."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    return folder


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "to a file outside": lambda folder, canary: (folder / "x.txt").symlink_to(canary),
    "to a file outside, by dots": lambda folder, canary: (folder / "x.txt").symlink_to(
        "../secret.txt"
    ),
    "to a folder outside": lambda folder, canary: (folder / "x").symlink_to(canary.parent),
    "to its own folder": lambda folder, canary: (folder / "x").symlink_to("."),
    "to itself": lambda folder, canary: (folder / "x.txt").symlink_to("x.txt"),
    "to nothing": lambda folder, canary: (folder / "x.txt").symlink_to("none.txt"),
    "to a pipe": lambda folder, canary: (
        os.mkfifo(folder / "pipe"),
        (folder / "x.txt").symlink_to("pipe"),
    ),
    "to a device": lambda folder, canary: (folder / "x.txt").symlink_to("/dev/zero"),
    "through another": lambda folder, canary: (
        (folder / "y").symlink_to(canary),
        (folder / "x.txt").symlink_to("y"),
    ),
}


@pytest.mark.parametrize("case", LINKS)
def test_a_link_that_leads_out_of_the_folder_or_nowhere_is_refused(folder, canary, cache, case):
    LINKS[case](folder, canary)
    said = refused(files_config(folder))
    assert re.search(
        r"data\.path=.*/x(\.txt)?: is a link that leads to no file of this folder", said
    )
    assert left_in(cache) == []


def test_a_link_within_the_folder_and_the_folder_as_a_link_are_read(folder, tmp_path):
    alone = prepare(files_config(folder), BYTES)
    (folder / "x.txt").symlink_to("1.txt")
    (tmp_path / "link").symlink_to(folder)
    linked = prepare(files_config(tmp_path / "link"), BYTES)
    documents = [sum(prepared.corpus["documents"].values()) for prepared in (alone, linked)]
    assert documents == [60, 61]


ODD_NAMES = [
    "a\nb.txt", "😀.txt", "a..b.txt", "%2e%2e%2fsecret.txt", "n" * 250 + ".txt", "*.txt", "[a]?.txt", "~.txt",
    "$(touch canary).txt", "-rf.txt", "a b\t.txt", "\udcff.txt", "http:.txt", "\\0.txt", "a\\..\\secret.txt",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_is_a_name_and_no_more(tmp_path, canary, name):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / name).write_text("".join(f"line {number}\n" for number in range(50)))
    for path in (tmp_path / "corpus", tmp_path / "corpus" / name):
        prepared = prepare(files_config(path, sample_by="line"), BYTES)
        assert sum(prepared.corpus["documents"].values()) == 50
        assert sum(prepared.corpus["text_bytes"].values()) in range(340, 500)
    assert sorted(os.listdir(tmp_path)) == ["cache", "corpus", "secret.txt"]


@pytest.mark.parametrize("name", ["a::b.txt", "::.txt", "a::"])
def test_a_name_that_the_file_library_takes_for_two_places_is_refused(tmp_path, canary, name):
    # root/a::/secret.txt would be secret.txt of the machine's root, seen through root/a
    path = tmp_path / "corpus" / name
    path = path / "secret.txt" if name == "a::" else path
    path.parent.mkdir(parents=True)
    path.write_text("a\nb\nc\n")
    for given_path in (tmp_path / "corpus", path):
        assert (
            refused(files_config(given_path, sample_by="line"))
            == f"data.path={path}: a name may not hold ::"
        )


@pytest.mark.parametrize(
    "path", ["n" * 300 + ".txt", "n/" * 3000, "\ud800", "/dev/zero", "/dev/null", "/proc/self/mem"]
)
def test_a_path_that_can_be_no_corpus_is_one_sentence(path, cache):
    assert refused(files_config(path)).startswith("data.path=")
    assert left_in(cache) == []


def test_pipes_and_folders_with_a_file_s_name_are_passed_over(folder):
    os.mkfifo(folder / "pipe.txt")
    (folder / "folder.txt").mkdir()
    assert sum(prepare(files_config(folder), BYTES).corpus["documents"].values()) == 60


# -- what is not what its name says ------------------------------------------------------------------------------------


class Bomb:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.canary,))


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
        corpora.append(files_config(root / case, sample_by="line", cache_dir=str(root / "cache")))
    outcomes = dict(zip(DISGUISED, in_a_child(*corpora), strict=False))
    assert left_in(root / "cache") == []
    assert sorted(os.listdir(root)) == sorted([*DISGUISED, "cache"])
    return outcomes


@pytest.mark.parametrize("case", DISGUISED)
def test_what_is_not_what_its_name_says_is_refused_in_one_sentence(disguised, case):
    kind, said = disguised[case]
    assert kind == "ConfigError", said
    assert "data." in said and "\n" not in said


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.jsonl", "a.json", "a.txt", "a.txt.gz", "a.jsonl.zst"]
)
def test_a_pickle_is_never_loaded_whatever_its_name(tmp_path, name):
    canary = tmp_path / "canary"
    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        bomb = pickle.dumps(Bomb(canary), protocol)
        pickle.loads(bomb)
        assert canary.exists()  # it would
        canary.unlink()
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / name).write_bytes(bomb)
        try:
            prepare(
                files_config(tmp_path / "corpus", sample_by="line", holdout_fraction=0.5), BYTES
            )
        except OUR_ERRORS as error:
            assert "\n" not in str(error)
        assert not canary.exists()


def test_bytes_marks_and_control_characters_are_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        b"\xef\xbb\xbf" + b"".join(b"line\0\x1b[2J\r %d\n" % n for n in range(50))
    )
    assert (
        sum(
            prepare(files_config(tmp_path / "a.txt", sample_by="line"), BYTES)
            .corpus["documents"]
            .values()
        )
        >= 50
    )


@given(st.text(alphabet='ab "\\[]{}\n', max_size=200), st.integers(0, 600))
@settings(deadline=None, derandomize=True)
def test_nesting_is_counted_as_a_parser_of_json_counts_it(text, depth):
    value = text
    for _ in range(depth):
        value = [value]
    line = (
        json.dumps({"text": text, "x": None})
        .replace("null", "[" * depth + json.dumps(text) + "]" * depth)
        .encode()
    )
    deepest, after = files_module._nesting(line, 0)
    assert after == 0
    assert (deepest > files_module.MAX_NESTING) == (depth + 1 > files_module.MAX_NESTING)


def test_a_long_document_gives_the_tokens_that_it_gives_at_once(tmp_path, monkeypatch):
    text = " ".join(f"word{number}" for number in range(20_000))
    data = files_config(tmp_path / "d")
    (tmp_path / "d").mkdir()
    for name in ("train.txt", "validation.txt"):
        (tmp_path / "d" / name).write_text(text)
    for tokenizer in (BYTES, TokenizerConfig("bpe", "bpe", 300, 100_000, None, None)):
        found = []
        for size in (1 << 30, 1 << 16):
            monkeypatch.setattr("rope_exp.data.prepare.BATCH_BYTES", size)
            prepared = prepare(
                dataclasses.replace(data, cache_dir=str(tmp_path / f"cache{size}")), tokenizer
            )
            found.append(
                (prepared.data_sha256, prepared.corpus["documents"], prepared.corpus["text_bytes"])
            )
            assert prepared.corpus["documents"] == {"train": 1, "validation": 1}
        assert found[0] == found[1]


# -- a hostile cache ---------------------------------------------------------------------------------------------------


def test_a_prepared_folder_that_is_a_link_is_refused(folder, tmp_path, cache):
    prepared = prepare(files_config(folder), BYTES)
    prepared.folder.rename(tmp_path / "elsewhere")
    for target in (tmp_path / "elsewhere", tmp_path / "nowhere"):
        prepared.folder.unlink(missing_ok=True)
        prepared.folder.symlink_to(target)
        assert "is a link or a file, not a prepared folder; remove it" in refused(
            files_config(folder)
        )
    prepared.folder.unlink()
    prepared.folder.write_text("")
    assert "is a link or a file, not a prepared folder; remove it" in refused(files_config(folder))
    assert not (tmp_path / "nowhere").exists()


def test_leftovers_are_cleared_without_following_links(folder, tmp_path, cache):
    name = prepare(files_config(folder), BYTES).folder.name
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    for path in cache.iterdir():
        if path.name != "locks":
            path.rename(tmp_path / "old")
    (cache / f".{name}.1").symlink_to(precious)
    (cache / f".{name}.2").write_text("a file")
    (cache / f".{name}.3").mkdir()
    (cache / f".{name}.3" / "link").symlink_to(precious)
    prepare(files_config(folder), BYTES).verify()
    assert left_in(cache) == [name]
    assert (precious / "file").read_text() == "kept"


@pytest.mark.parametrize("kind", ["folder", "link", "locks is a file"])
def test_a_lock_that_is_no_file_is_refused_and_nothing_is_written_through_it(
    folder, tmp_path, cache, kind
):
    prepared = prepare(files_config(folder), BYTES)
    name = prepared.folder.name
    prepared.folder.rename(tmp_path / "old")
    (tmp_path / "precious").write_text("kept")
    lock = cache / "locks" / name
    lock.unlink(missing_ok=True)
    if kind == "folder":
        lock.mkdir()
    elif kind == "link":
        lock.symlink_to(tmp_path / "precious")
    else:
        lock.parent.rmdir()
        lock.parent.write_text("")
    assert re.search(r"data\.cache_dir=.*: cannot be written: ", refused(files_config(folder)))
    assert (tmp_path / "precious").read_text() == "kept"
    assert left_in(cache) == []


# -- fuzzing: whatever is done to a valid file, our errors or none -----------------------------------------------------


def harmed(content: bytes, harms: list[tuple[str, float, bytes]]) -> bytes:
    for kind, share, junk in harms:
        place = int(share * len(content))
        if kind == "flip" and content:
            content = (
                content[:place]
                + bytes([content[place] ^ (junk[0] if junk else 1) or 1])
                + content[place + 1 :]
            )
        elif kind == "cut":
            content = content[:place]
        elif kind == "insert":
            content = content[:place] + junk + content[place:]
        elif kind == "remove":
            content = content[:place] + content[place + len(junk) :]
    return content


harms = st.lists(
    st.tuples(
        st.sampled_from(["flip", "flip", "flip", "cut", "insert", "remove"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)
quick = settings(max_examples=50, deadline=None, derandomize=True)
some = settings(
    max_examples=20, deadline=None, derandomize=True
)  # of what datasets reads, which takes its time
long = settings(max_examples=2000, deadline=None, derandomize=True)


def parquet_bytes(**options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"text": TEXTS * 3, "id": range(180)}), sink, row_group_size=70, **options
    )
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
    """Prepare a corpus of one file: it is read, or refused in our words."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    cache = path.parent.parent / "cache"
    try:
        prepare(files_config(path, sample_by="line", cache_dir=str(cache)), BYTES).verify()
    except OUR_ERRORS as error:
        assert "\n" not in str(error)
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", VALID)
def test_a_harmed_corpus_file_is_read_or_refused_in_our_words(place, name):
    @given(harms)
    @(quick if "parquet" in name else some)
    def check(harms: list[tuple[str, float, bytes]]) -> None:
        survive(place / "corpus" / name, harmed(VALID[name], harms))

    check()


@pytest.mark.torture
@pytest.mark.parametrize("name", VALID)
def test_a_corpus_file_harmed_in_any_way_is_read_or_refused_in_our_words(place, name):
    @given(harms)
    @(long if "parquet" in name else settings(long, max_examples=500))
    def check(harms: list[tuple[str, float, bytes]]) -> None:
        survive(place / "corpus" / name, harmed(VALID[name], harms))

    check()


@pytest.fixture(scope="module")
def fine(place: Path) -> DataConfig:
    """A corpus of plain text, prepared."""
    (place / "fine.txt").write_text("\n".join(TEXTS))
    data = files_config(place / "fine.txt", sample_by="line", cache_dir=str(place / "fine"))
    prepare(data, BYTES)
    return data


def survive_prepared(fine: DataConfig, name: str, harms: list[tuple[str, float, bytes]]) -> None:
    prepared = prepare(fine, BYTES)
    path = prepared.folder / name
    content = path.read_bytes()
    path.write_bytes(harmed(content, harms))
    try:
        found = prepare(fine, BYTES)
        found.verify()
        assert (found.data_sha256, found.corpus) == (prepared.data_sha256, prepared.corpus)
    except OUR_ERRORS as error:
        assert str(path) in str(error) and "\n" not in str(error)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["meta.json", "tokenizer.json", "train.bin", "validation.bin"])
def test_a_harmed_prepared_folder_is_as_it_was_or_refused_by_name(fine, name):
    @given(harms)
    @quick
    def check(harms: list[tuple[str, float, bytes]]) -> None:
        survive_prepared(fine, name, harms)

    check()


@pytest.mark.torture
@pytest.mark.parametrize("name", ["meta.json", "tokenizer.json", "train.bin", "validation.bin"])
def test_a_prepared_folder_harmed_in_any_way_is_as_it_was_or_refused_by_name(fine, name):
    @given(harms)
    @long
    def check(harms: list[tuple[str, float, bytes]]) -> None:
        survive_prepared(fine, name, harms)

    check()


def check_tokenizer(place: Path, harms: list[tuple[str, float, bytes]]) -> None:
    path = place / "tokenizer.json"
    path.write_bytes(harmed(BPE, harms))
    try:
        encode(load_tokenizer(path), TEXTS)
    except OUR_ERRORS as error:
        assert str(path) in str(error) and "\n" not in str(error)


BPE = train_bpe(TokenizerConfig("bpe", "bpe", 300, 20_000, None, None), TEXTS).to_str().encode()


@given(harms)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_harmed_tokenizer_is_read_or_refused_in_our_words(place, harms):
    check_tokenizer(place, harms)


@pytest.mark.torture
@given(harms)
@settings(max_examples=20_000, deadline=None, derandomize=True)
def test_a_tokenizer_harmed_in_any_way_is_read_or_refused_in_our_words(place, harms):
    check_tokenizer(place, harms)


def edited_bpe(**changes: object) -> bytes:
    values = json.loads(BPE)
    values["model"] |= changes
    return json.dumps(values).encode()


HOSTILE_TOKENIZERS = {
    "no JSON": b"{",
    "a pickle": pickle.dumps([]),
    "a panic": edited_bpe(
        continuing_subword_prefix="a" * 100
    ),  # the Rust library indexes out of range
    "merges of nothing": edited_bpe(merges=[["no", "where"]]),
}


@pytest.mark.parametrize("case", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_file_is_refused_in_one_sentence(tmp_path, case):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(HOSTILE_TOKENIZERS[case])
    with pytest.raises(DataError, match=rf"{path} cannot be read as a tokenizer: ") as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["a panic", pytest.param("a pickle", marks=pytest.mark.torture)])
def test_a_hostile_pretrained_folder_is_refused_in_one_sentence(folder, tmp_path, cache, case):
    pretrained = tmp_path / "pretrained"
    pretrained.mkdir()
    (pretrained / "tokenizer.json").write_bytes(HOSTILE_TOKENIZERS[case])
    (pretrained / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    )
    said = refused(
        files_config(folder),
        TokenizerConfig("own", "pretrained", None, None, str(pretrained), None),
    )
    assert str(pretrained) in said
    assert left_in(cache) == []


# -- no pickle ---------------------------------------------------------------------------------------------------------

FORBIDDEN = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def test_no_module_of_ours_reads_or_writes_pickles():
    paths = [
        *(REPOSITORY / "rope_exp").rglob("*.py"),
        *(REPOSITORY / "scripts").glob("*.py"),
        REPOSITORY / "train.py",
    ]
    assert len(paths) > 30
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in FORBIDDEN, path
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("torch.load", "torch.save", "eval", "exec"), (
                    path
                )
                assert not any(
                    word.arg in ("allow_pickle", "trust_remote_code")
                    and ast.unparse(word.value) != "False"
                    for word in node.keywords
                ), path
                assert not ast.unparse(node.func).endswith(("read_pickle", "to_pickle")), path


AUDIT = """
import os, sys
def hear(event, arguments):
    if event == "pickle.find_class":
        with open(os.environ["HEARD"], "a") as file:
            file.write(f"{sys.argv[:2]} {arguments}\\n")
    elif event == "import" and arguments[0] == "torch":
        with open(os.environ["HEARD"] + ".torch", "a") as file:
            file.write("torch\\n")
sys.addaudithook(hear)
"""


def test_no_pickle_is_loaded_in_a_whole_run(tiny_overrides, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(AUDIT)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)]),
        "HEARD": str(tmp_path / "heard"),
    }
    command = [
        sys.executable,
        "train.py",
        *tiny_overrides,
        "train.compile=false",
        "launch.device=cpu",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "heard.torch").exists()  # the hook was there, in the process that trains
    assert not (tmp_path / "heard").exists()
    code = "import pickle, fractions; pickle.loads(pickle.dumps(fractions.Fraction))"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert "Fraction" in (tmp_path / "heard").read_text()  # and it hears
