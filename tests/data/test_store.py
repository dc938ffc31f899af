"""Token files: what is written is what is read, or damage that is said."""

import gc
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.refused import refused

from rope_exp.data import store as store_module
from rope_exp.data.store import BLOCK_BYTES, TokenFile, Tokens, token_dtype
from rope_exp.system.errors import ConfigError

NARROW = token_dtype(2**16)
WIDE = token_dtype(2**32)


def test_a_large_vocabulary_takes_32_bits(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with TokenFile(path, WIDE) as file:
        file.write([70_000, 1])
    assert np.fromfile(path, "<u4").tolist() == [70_000, 1]


def test_an_id_that_does_not_fit_never_wraps(tmp_path: Path) -> None:
    with (
        TokenFile(tmp_path / "tokens.bin", NARROW) as file,
        pytest.raises(OverflowError, match="65536 out of bounds"),
    ):
        file.write([1, 65_536])


def test_digests_cover_blocks_of_a_fixed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the ids were written."""
    monkeypatch.setattr(store_module, "BLOCK_BYTES", 64)
    digests = []
    for step in (1, 7, 1000):
        with TokenFile(tmp_path / str(step), NARROW) as file:
            for first in range(0, 1000, step):
                file.write(range(first, min(first + step, 1000)))
        assert np.fromfile(tmp_path / str(step), "<u2").tolist() == list(range(1000))
        digests.append(bytes(file.digests))
    whole = np.arange(1000, dtype="<u2").tobytes()
    expected = b""
    for first in range(0, 2000, 64):
        expected += hashlib.sha256(whole[first : first + 64]).digest()
    assert digests[0] == expected
    assert digests[0] == digests[1] == digests[2]


Stored = tuple[Path, Callable[[], Tokens], NDArray[np.uint32]]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """Three blocks and a bit: the file, how to open it, and its ids."""
    path, ids = tmp_path / "train.bin", np.arange(3 * BLOCK_BYTES // 4 + 100, dtype=np.uint32)
    with TokenFile(path, WIDE) as file:
        file.write(ids.tolist())
    return path, lambda: Tokens(path, WIDE, len(ids), bytes(file.digests)), ids


def test_a_block_is_hashed_once_when_it_is_touched(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, open_, _ = stored
    tokens = open_()
    reads: list[int] = []
    pread = os.pread

    def counted(file: int, num_bytes: int, place: int) -> bytes:
        reads.append(num_bytes)
        return pread(file, num_bytes, place)

    monkeypatch.setattr(os, "pread", counted)
    for _ in range(3):
        tokens[10:20]
    assert reads == [BLOCK_BYTES, 40, 40, 40]


def test_damage_done_while_we_run_is_found(stored: Stored) -> None:
    """In a block that was read and checked before."""
    path, open_, ids = stored
    tokens = open_()
    np.testing.assert_array_equal(tokens[0:50], ids[0:50])
    time.sleep(0.02)  # a file's times are those of the kernel's clock ticks
    with path.open("r+b") as file:
        file.write(b"\xff")
    with refused("is damaged in bytes 0 to 65,536"):
        tokens[0:50]


def test_a_file_cut_while_we_run_is_an_error_and_no_signal(stored: Stored) -> None:
    path, open_, _ = stored
    tokens = open_()
    tokens[0:50]
    os.truncate(path, 2 * BLOCK_BYTES)
    with refused(f"{path} ends before byte {4 * len(tokens):,}; remove"):
        tokens[-50:]


def test_a_sector_that_cannot_be_read_is_named(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, open_, _ = stored

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with refused(f"{path} cannot be read in bytes 0 to 65,536: Input/output error; remove"):
        open_()[0:1]


def test_files_do_not_stay_open(stored: Stored) -> None:
    _, open_, _ = stored
    # What earlier tests left is closed now, and not while we count.
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        open_()[0:1]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_ids_are_as_wide_as_the_vocabulary_asks() -> None:
    assert token_dtype(257) == np.uint16
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32
    assert token_dtype(2**32) == np.uint32
    with refused("tokenizer.vocab_size", "2^32", by=ConfigError):
        token_dtype(2**32 + 1)
