"""Damage to a prepared corpus: found before a damaged id is trained or evaluated on, and said by name."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.configs import REPOSITORY

from rope_exp.config.compose import run_config
from rope_exp.config.sections import DataConfig, TokenizerConfig
from rope_exp.data import prepare as blocks_module
from rope_exp.data.batches import Batches, validation_ids
from rope_exp.data.prepare import Prepared, prepare
from rope_exp.data.store import BLOCK_BYTES, TokenFile, Tokens
from rope_exp.run.metrics import read_metrics
from rope_exp.system.errors import DataError
from rope_exp.system.files import read_json

BYTES = TokenizerConfig("bytes", "bytes", None, None, None, None)
SIDES = ("train", "validation")
SEQ_LEN = 1000
# Fresh folders for each example would cost most of the time: bytes are put back after each.
quick = settings(max_examples=60, deadline=None, derandomize=True)
long = settings(max_examples=3000, deadline=None, derandomize=True)


@dataclasses.dataclass(frozen=True)
class Whole:
    """A prepared corpus of several blocks a side, and what it holds."""

    data: DataConfig
    prepared: Prepared
    ids: dict[str, np.ndarray]

    def path(self, name: str) -> Path:
        return self.prepared.folder / name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "text").mkdir()
    for number in range(40):
        text = "".join(f"{number * place % 977:03x} " for place in range(3000))
        (folder / "text" / f"{number}.txt").write_text(text)
    data = DataConfig(
        "mine",
        "files",
        str(folder / "text"),
        None,
        None,
        "text",
        "document",
        None,
        0.5,
        None,
        str(folder / "c"),
        None,
    )
    prepared = prepare(data, BYTES)
    ids = {side: np.fromfile(prepared.folder / f"{side}.bin", "<u2") for side in SIDES}
    assert all(2 * len(ids[side]) > 4 * BLOCK_BYTES for side in SIDES)
    return Whole(data, prepared, ids)


def windows_of(whole: Whole, side: str) -> list[np.ndarray | DataError]:
    """Each window as it is handed out, or why it is not."""
    tokens, outcomes = getattr(prepare(whole.data, BYTES), side), []
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
    start, stop = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, path.stat().st_size)
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
            assert str(outcome) == (
                f"{path} is damaged in bytes {start:,} to {stop:,}; remove {path.parent} and prepare again"
            )
        else:
            np.testing.assert_array_equal(outcome, whole.ids[side][first // 2 : last // 2])


flips = {"side": st.sampled_from(SIDES), "place": st.integers(0, 1 << 40), "bit": st.integers(0, 7)}


@given(**flips)
@quick
def test_one_flipped_bit_refuses_every_window_of_its_block_and_no_other(whole, side, place, bit):
    check_flip(whole, side, place, bit)


@pytest.mark.torture
@given(**flips)
@long
def test_any_flipped_bit_refuses_every_window_of_its_block_and_no_other(whole, side, place, bit):
    check_flip(whole, side, place, bit)


@given(
    st.sampled_from(["train.bin", "validation.bin", "meta.json", "tokenizer.json"]),
    st.floats(0, 1, exclude_max=True),
)
@quick
def test_a_file_cut_at_any_length_is_refused_by_name(whole, name, share):
    path = whole.path(name)
    content = path.read_bytes()
    os.truncate(path, int(share * len(content)))
    try:
        with pytest.raises(
            DataError, match=rf"{re.escape(str(path))}.*; remove {path.parent} and prepare again"
        ):
            prepare(whole.data, BYTES)
    finally:
        path.write_bytes(content)


@given(st.integers(0, 1 << 40), st.integers(0, 7))
@quick
def test_a_flipped_bit_of_the_other_files_changes_nothing_or_is_refused(whole, place, bit):
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
            assert dataclasses.replace(prepared, corpus=whole.prepared.corpus) == whole.prepared
            assert prepared.corpus == whole.prepared.corpus
            assert name == "meta.json"  # white space; of the tokenizer's every byte counts
        finally:
            path.write_bytes(content)


def with_sums(values: dict) -> str:
    """meta.json by someone who knows how it is checked."""
    values["meta_sha256"] = blocks_module._meta_sha256(values)
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
def test_an_edited_value_of_meta_is_refused_by_name_even_where_its_sum_was_made_anew(
    whole, data, value
):
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
    forged = (
        "NaN" not in json.dumps(values)
        and "Infinity" not in json.dumps(values)
        and data.draw(st.booleans())
    )
    path.write_text(with_sums(values) if forged else json.dumps(values))
    try:
        prepared = prepare(whole.data, BYTES)
    except DataError as error:
        assert f"{whole.prepared.folder}" in str(error) and "\n" not in str(error)
    else:
        assert prepared.data_sha256 == whole.prepared.data_sha256
        assert value == old or (forged and key in ("end_id", "vocab_size", "meta_sha256"))
        for side in SIDES:
            np.testing.assert_array_equal(getattr(prepared, side)[:], whole.ids[side])
    finally:
        path.write_text(content)


EDITS: dict[str, tuple[Callable[[dict], object], str]] = {
    "another format": (lambda meta: meta.update(format=1), "format=1: must be 2"),
    "a key that is none": (lambda meta: meta.update(more=1), "more: there is no such key"),
    "a missing key": (lambda meta: meta.pop("data_sha256"), "data_sha256=null: is missing"),
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
        r"corpus\.tokens=many: must be a group",
    ),
    "a negative count": (lambda meta: meta["corpus"]["tokens"].update(train=-1), "of at least 0"),
    "an id past the end": (
        lambda meta: meta["corpus"].update(end_id=10**9),
        r"corpus\.end_id must be the id of a tok",
    ),
    "no corpus": (lambda meta: meta.update(corpus=[]), "corpus must be a group of keys"),
}


@pytest.mark.parametrize("case", EDITS)
def test_meta_is_checked_against_itself(whole, case):
    edit, message = EDITS[case]
    path = whole.path("meta.json")
    content = path.read_text()
    values = json.loads(content)
    edit(values)
    path.write_text(with_sums(values))
    try:
        with pytest.raises(DataError, match=rf"meta\.json is damaged \(.*{message}.*\); remove"):
            prepare(whole.data, BYTES)
    finally:
        path.write_text(content)


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"[" * 10**6, b'{"a": 1, "a": 2}', b"\xff", b'{"format": 1e999}']
)
def test_a_meta_that_is_no_such_file_is_refused(whole, content):
    path = whole.path("meta.json")
    old = path.read_bytes()
    path.write_bytes(content)
    try:
        with pytest.raises(DataError, match=r"meta\.json is damaged \(.*\); remove"):
            prepare(whole.data, BYTES)
    finally:
        path.write_bytes(old)


def test_a_meta_far_too_long_is_refused_unread(whole):
    path = whole.path("meta.json")
    size = path.stat().st_size
    os.truncate(path, 1 << 40)  # takes no room on the disk; read whole, it would take the memory
    try:
        with pytest.raises(DataError, match=r"meta\.json is longer than [\d,]+ bytes"):
            prepare(whole.data, BYTES)
    finally:
        os.truncate(path, size)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "meta.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "missing"])
def test_what_is_no_plain_file_is_refused_and_a_pipe_is_not_waited_for(whole, tmp_path, name, kind):
    path, aside = whole.path(name), tmp_path / name
    shutil.move(path, aside)
    {
        "link": lambda: path.symlink_to(aside),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "missing": lambda: None,
    }[kind]()
    try:
        with pytest.raises(
            DataError, match=rf"{re.escape(str(path))}.*; remove {path.parent} and prepare again"
        ):
            prepare(whole.data, BYTES)
    finally:
        if kind != "missing":
            path.rmdir() if kind == "folder" else path.unlink()
        shutil.move(aside, path)


# -- while a run reads -------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Callable[[], Tokens], np.ndarray]:
    """Three blocks and a bit: the file, how to open it, and its ids."""
    path, ids = tmp_path / "train.bin", np.arange(3 * BLOCK_BYTES // 4 + 100, dtype=np.uint32)
    with TokenFile(path, np.uint32) as file:
        file.write(ids)
    return path, lambda: Tokens(path, np.uint32, bytes(file.digests)), ids


@given(st.integers(-10, 60_000), st.integers(-10, 60_000))
@settings(deadline=None, derandomize=True)
def test_slices_are_those_of_the_array(whole, first, last):
    for side in SIDES:
        tokens, ids = getattr(whole.prepared, side), whole.ids[side]
        assert len(tokens) == len(ids)
        np.testing.assert_array_equal(tokens[first:last], ids[first:last])


def test_batches_of_the_file_are_those_of_the_array(whole):
    shape = {"seed": 3, "batch_size": 5, "seq_len": 700}
    from_file, from_array = (
        Batches(whole.prepared.train, **shape),
        Batches(whole.ids["train"], **shape),
    )
    for step in (1, 7, 100):
        np.testing.assert_array_equal(from_file.ids(step), from_array.ids(step))
    np.testing.assert_array_equal(
        validation_ids(whole.prepared.validation, 9, 700),
        validation_ids(whole.ids["validation"], 9, 700),
    )


def test_a_block_is_hashed_once_and_only_when_it_is_touched(stored, monkeypatch):
    _, open_, _ = stored
    tokens, reads = open_(), []
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda *arguments: reads.append(arguments[1]) or pread(*arguments)
    )
    for _ in range(3):
        tokens[10:20]
    assert reads == [BLOCK_BYTES, 40, 40, 40]


def test_damage_done_while_we_run_is_found_in_blocks_read_before(stored):
    path, open_, ids = stored
    tokens = open_()
    np.testing.assert_array_equal(tokens[0:50], ids[0:50])
    time.sleep(0.02)  # a file's times are those of the kernel's clock ticks
    with path.open("r+b") as file:
        file.write(b"\xff")
    with pytest.raises(DataError, match="is damaged in bytes 0 to 65,536"):
        tokens[0:50]


def test_a_file_that_is_cut_while_we_run_is_an_error_and_not_a_signal(stored):
    path, open_, _ = stored
    tokens = open_()
    tokens[0:50]
    os.truncate(path, 2 * BLOCK_BYTES)
    with pytest.raises(DataError, match=rf"{path} ends before byte {4 * len(tokens):,}; remove"):
        tokens[-50:]


def test_a_sector_that_cannot_be_read_is_named(stored, monkeypatch):
    path, open_, _ = stored

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(
        DataError, match=rf"{path} cannot be read in bytes 0 to 65,536: Input/output error; remove"
    ):
        open_()[0:1]


def test_files_do_not_stay_open(stored):
    _, open_, _ = stored
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        open_()[0:1]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- end to end --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    for number in range(30):
        text = " ".join(str(number * place % 7919) for place in range(6000))
        (folder / f"{number}.txt").write_text(text)
    return folder


def train(overrides: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "train.py", *overrides, "train.compile=false", "launch.device=cpu"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def without_times(folder: Path) -> list[dict[str, object]]:
    return [
        {
            key: value
            for key, value in row.items()
            if key not in ("tokens_per_s", "elapsed_s", "mfu")
        }
        for row in read_metrics(folder)
    ]


def flip(path: Path, block: int) -> None:
    with path.open("r+b") as file:
        file.seek(block * BLOCK_BYTES + 1)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_a_run_ends_before_a_damaged_step_and_goes_on_once_the_bytes_are_back(
    tiny_overrides, long_corpus, tmp_path, num_processes
):
    overrides = [
        *tiny_overrides,
        f"data.path={long_corpus}",
        f"data.cache_dir={tmp_path / 'cache'}",
    ]
    overrides.append(f"launch.num_processes={num_processes}")
    undisturbed = train([*overrides, f"run.dir={tmp_path / 'whole'}"])
    assert undisturbed.returncode == 0, undisturbed.stderr

    [meta] = (tmp_path / "cache").glob("*/meta.json")
    path, config = meta.with_name("train.bin"), run_config(overrides)
    places = np.arange(path.stat().st_size // 2)
    batches = Batches(places, seed=config.order_seed, batch_size=4, seq_len=16)
    blocks = [set((2 * batches.ids(step).ravel() // BLOCK_BYTES).tolist()) for step in range(1, 5)]
    block = min(blocks[3] - set().union(*blocks[:3]))  # first touched at step 4

    flip(path, block)
    stopped = train(overrides)
    assert stopped.returncode == 1, stopped.stderr
    errors = [line for line in stopped.stderr.splitlines() if "error:" in line]
    start, stop = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, path.stat().st_size)
    sentence = f"error: {path} is damaged in bytes {start:,} to {stop:,}; remove {path.parent} and prepare again"
    assert set(errors) == {sentence}
    assert "Traceback" not in stopped.stderr
    assert [row["step"] for row in read_metrics(config.folder)] == [1, 2, 3]
    assert not (config.folder / "result.json").exists()

    flip(path, block)
    again = train(overrides)
    assert again.returncode == 0, again.stderr
    assert without_times(config.folder) == without_times(tmp_path / "whole")
    results = [read_json(folder / "result.json") for folder in (config.folder, tmp_path / "whole")]
    for key in ("val/loss", "order_sha256", "data_sha256", "init_sha256"):
        assert results[0][key] == results[1][key]


def test_a_damaged_held_out_block_ends_the_run_before_its_first_row(
    tiny_overrides, long_corpus, tmp_path
):
    overrides = [
        *tiny_overrides,
        f"data.path={long_corpus}",
        f"data.cache_dir={tmp_path / 'cache'}",
    ]
    config = run_config(overrides)
    prepared = prepare(config.data, config.tokenizer)
    flip(prepared.folder / "validation.bin", 0)
    stopped = train(overrides)
    assert stopped.returncode == 1
    assert f"error: {prepared.folder / 'validation.bin'} is damaged in bytes 0 to" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert read_metrics(config.folder) == []
