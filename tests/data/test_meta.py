"""A prepared folder: damage is found before a damaged id is handed out, and said by name."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.corpora import BYTES, data_config
from support.refused import refused

from rope_exp.config.sections import DataConfig
from rope_exp.data.batches import Batches, validation_ids
from rope_exp.data.documents import SIDES
from rope_exp.data.meta import Prepared, meta_sha256
from rope_exp.data.prepare import prepare
from rope_exp.data.store import BLOCK_BYTES
from rope_exp.system.errors import DataError

SEQ_LEN = 1000
NAMES = ("train.bin", "validation.bin", "meta.json", "tokenizer.json")

# Fresh folders for each example would cost most of the time: bytes are put back after each.
quick = settings(max_examples=60, derandomize=True)
long = settings(max_examples=3000, derandomize=True)


@dataclasses.dataclass(frozen=True)
class Whole:
    """A prepared corpus of several blocks a side, and what it holds."""

    data: DataConfig
    prepared: Prepared
    ids: dict[str, NDArray[np.uint16]]

    def path(self, name: str) -> Path:
        return self.prepared.folder / name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "text").mkdir()
    for number in range(40):
        text = "".join(f"{number * place % 977:03x} " for place in range(3000))
        (folder / "text" / f"{number}.txt").write_text(text)
    data = data_config(path=folder / "text", holdout_fraction=0.5, cache_dir=str(folder / "c"))
    prepared = prepare(data, BYTES)
    ids = {side: np.fromfile(prepared.folder / f"{side}.bin", "<u2") for side in SIDES}
    assert all(2 * len(ids[side]) > 4 * BLOCK_BYTES for side in SIDES)
    return Whole(data, prepared, ids)


def windows_of(whole: Whole, side: str) -> list[Any]:
    """Each window as it is handed out, or why it is not."""
    tokens = prepare(whole.data, BYTES).tokens[side]
    outcomes: list[Any] = []
    for first in range(0, len(tokens) - SEQ_LEN, SEQ_LEN):
        try:
            outcomes.append(tokens[first : first + SEQ_LEN + 1])
        except DataError as error:
            outcomes.append(error)
    return outcomes


def check_flip(whole: Whole, side: str, place: int, bit: int) -> None:
    path = whole.path(f"{side}.bin")
    place %= path.stat().st_size
    block = place // BLOCK_BYTES
    start = block * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))
    try:
        outcomes = windows_of(whole, side)
    finally:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([byte]))
    for number, outcome in enumerate(outcomes):
        first, last = 2 * number * SEQ_LEN, 2 * ((number + 1) * SEQ_LEN + 1)
        if first < stop and last > start:
            damage = f"{path} is damaged in bytes {start:,} to {stop:,}"
            assert str(outcome) == f"{damage}; remove {path.parent} and prepare again"
        else:
            np.testing.assert_array_equal(outcome, whole.ids[side][first // 2 : last // 2])


flips = {"side": st.sampled_from(SIDES), "place": st.integers(0, 1 << 40), "bit": st.integers(0, 7)}


@given(**flips)
@quick
def test_one_flipped_bit(whole: Whole, side: str, place: int, bit: int) -> None:
    """It refuses every window of its block and no other."""
    check_flip(whole, side, place, bit)


@pytest.mark.torture
@given(**flips)
@long
def test_any_flipped_bit(whole: Whole, side: str, place: int, bit: int) -> None:
    """It refuses every window of its block and no other."""
    check_flip(whole, side, place, bit)


@given(st.sampled_from(NAMES), st.floats(0, 1, exclude_max=True))
@quick
def test_a_file_cut_at_any_length_is_refused_by_name(whole: Whole, name: str, share: float) -> None:
    path = whole.path(name)
    content = path.read_bytes()
    # Without its last newline meta.json says the same.
    os.truncate(path, int(share * (len(content) - 1)))
    try:
        with refused(str(path), f"; remove {path.parent} and prepare again", by=DataError):
            prepare(whole.data, BYTES)
    finally:
        path.write_bytes(content)


@given(st.integers(0, 1 << 40), st.integers(0, 7))
@quick
def test_a_flipped_bit_of_the_other_files(whole: Whole, place: int, bit: int) -> None:
    """It changes nothing, or is refused by name."""
    for name in ("meta.json", "tokenizer.json"):
        path = whole.path(name)
        content = path.read_bytes()
        place %= len(content)
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
        )
        try:
            prepared = prepare(whole.data, BYTES)
        except DataError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert dataclasses.replace(prepared, tokens=whole.prepared.tokens) == whole.prepared
            assert name == "meta.json"  # white space; of the tokenizer's every byte counts
        finally:
            path.write_bytes(content)


def with_sums(values: dict[str, Any]) -> str:
    """meta.json by someone who knows how it is checked."""
    values["meta_sha256"] = meta_sha256(values)
    return json.dumps(values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.data(), json_values)
@quick
def test_an_edited_value_of_meta(whole: Whole, data: st.DataObject, value: Any) -> None:
    """It is refused by name, even where its sum was made anew."""
    path = whole.path("meta.json")
    content = path.read_text()
    values = json.loads(content)
    group = data.draw(
        st.sampled_from(
            [values, values["corpus"], values["block_sha256"], values["corpus"]["tokens"]]
        )
    )
    key = data.draw(
        st.sampled_from(sorted(group.keys() - {"fingerprint", "path", "tokenizers", "validation"}))
    )
    old, group[key] = group[key], value
    is_json = not {"NaN", "Infinity"} & set(re.findall("[A-Za-z]+", json.dumps(values)))
    forged = is_json and data.draw(st.booleans())
    path.write_text(with_sums(values) if forged else json.dumps(values))
    try:
        prepared = prepare(whole.data, BYTES)
    except DataError as error:
        assert f"{whole.prepared.folder}" in str(error) and "\n" not in str(error)
    else:
        assert prepared.data_sha256 == whole.prepared.data_sha256
        assert value == old or (forged and key in ("end_id", "vocab_size", "meta_sha256"))
        for side in SIDES:
            np.testing.assert_array_equal(prepared.tokens[side][:], whole.ids[side])
    finally:
        path.write_text(content)


EDITS: dict[str, tuple[Callable[[Any], object], str]] = {
    "another format": (lambda meta: meta.update(format=1), "format=1: must be 2"),
    "a missing key": (lambda meta: meta.pop("data_sha256"), "data_sha256: is missing"),
    "another corpus's digest": (
        lambda meta: meta.update(data_sha256="0" * 64),
        "data_sha256 is not that of its dig",
    ),
    "a digest cut short": (
        lambda meta: meta["block_sha256"].update(train="ab"),
        "must be digests of 64",
    ),
    "a count of text": (
        lambda meta: meta["corpus"].update(tokens="many"),
        "corpus.tokens=many: must be a group",
    ),
    "a negative count": (lambda meta: meta["corpus"]["tokens"].update(train=-1), "of at least 0"),
    "an id past the end": (
        lambda meta: meta["corpus"].update(end_id=10**9),
        "corpus.end_id must be the id of a token",
    ),
    "no corpus": (lambda meta: meta.update(corpus=[]), "corpus=[]: must be a group of keys"),
}


@pytest.mark.parametrize("case", EDITS)
def test_meta_is_checked_against_itself(whole: Whole, case: str) -> None:
    edit, message = EDITS[case]
    path = whole.path("meta.json")
    content = path.read_text()
    values = json.loads(content)
    edit(values)
    path.write_text(with_sums(values))
    try:
        with refused("meta.json is damaged (", message, "); remove", by=DataError):
            prepare(whole.data, BYTES)
    finally:
        path.write_text(content)


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"[" * 10**6, b'{"a": 1, "a": 2}', b"\xff", b'{"format": 1e999}']
)
def test_a_meta_that_is_no_such_file_is_refused(whole: Whole, content: bytes) -> None:
    path = whole.path("meta.json")
    old = path.read_bytes()
    path.write_bytes(content)
    try:
        with refused("meta.json is damaged (", "); remove", by=DataError):
            prepare(whole.data, BYTES)
    finally:
        path.write_bytes(old)


def test_a_meta_far_too_long_is_refused_unread(whole: Whole) -> None:
    path = whole.path("meta.json")
    size = path.stat().st_size
    os.truncate(path, 1 << 40)  # takes no room on the disk; read whole, it would take the memory
    try:
        with refused("meta.json is longer than ", by=DataError):
            prepare(whole.data, BYTES)
    finally:
        os.truncate(path, size)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "missing"])
def test_what_is_no_plain_file_is_refused(
    whole: Whole, tmp_path: Path, name: str, kind: str
) -> None:
    """At a pipe nobody waits."""
    path = whole.path(name)
    aside = tmp_path / name
    shutil.move(path, aside)
    {
        "link": lambda: path.symlink_to(aside),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "missing": lambda: None,
    }[kind]()
    try:
        with refused(str(path), f"; remove {path.parent} and prepare again", by=DataError):
            prepare(whole.data, BYTES)
    finally:
        if kind != "missing":
            path.rmdir() if kind == "folder" else path.unlink()
        shutil.move(aside, path)


@given(st.integers(-10, 60_000), st.integers(-10, 60_000))
@settings(derandomize=True)
def test_slices_are_those_of_the_array(whole: Whole, first: int, last: int) -> None:
    for side in SIDES:
        tokens = whole.prepared.tokens[side]
        ids = whole.ids[side]
        assert len(tokens) == len(ids)
        np.testing.assert_array_equal(tokens[first:last], ids[first:last])


def test_batches_of_the_file_are_those_of_the_array(whole: Whole) -> None:
    shape = {"seed": 3, "batch_size": 5, "seq_len": 700}
    from_file = Batches(whole.prepared.tokens["train"], **shape)
    from_array = Batches(whole.ids["train"], **shape)
    for step in (1, 7, 100):
        np.testing.assert_array_equal(from_file.ids(step), from_array.ids(step))
    np.testing.assert_array_equal(
        validation_ids(whole.prepared.tokens["validation"], 9, 700),
        validation_ids(whole.ids["validation"], 9, 700),
    )
