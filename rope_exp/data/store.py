"""Token ids on the disk: written once, with a digest a block, and verified before they are used.

Blocks are small, so that the first steps on a large corpus, each of whose windows lies in a block
not seen before, hash little: at 2 GB/s a block takes 30 microseconds. Their digests take a
thousandth of the corpus's size.
"""

import hashlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rope_exp.system.errors import ConfigError, DataError
from rope_exp.system.files import descriptor_of

BLOCK_BYTES = 64 << 10  # of a .bin file under one digest
DIGEST_BYTES = 32  # of one block's SHA-256

TokenType = np.dtype[np.unsignedinteger]


class Tokens:
    """The ids of one .bin file: `len(tokens)`, and `tokens[first:last]` as a read-only array.

    A block is read and hashed when this process first hands out ids of it. From then on it costs
    a look into a set, until the file is seen to have changed.

    Nothing is memory-mapped: where a file is cut while we run, or a sector cannot be read, a map
    ends the process by SIGBUS, and a read is an error that can be said.
    """

    def __init__(self, path: Path, dtype: TokenType, num_tokens: int, digests: bytes) -> None:
        """Open a file; `digests` are those of its blocks, one after another.

        Raises:
            DataError: it cannot be opened, or does not hold so many tokens.
        """
        self._path = path
        self._dtype = dtype
        self._num_bytes = num_tokens * dtype.itemsize
        self._digests = digests
        try:
            self._file = descriptor_of(path)
        except OSError as error:
            raise damaged(path, f"cannot be opened: {error.strerror}") from None
        weakref.finalize(self, os.close, self._file)

        if os.fstat(self._file).st_size != self._num_bytes:
            raise damaged(path, "is too short or too long")

        # The places of the blocks that were verified, and the file's size and times then.
        self._checked: set[int] = set()
        self._state: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self._num_bytes // self._dtype.itemsize

    def __getitem__(self, part: slice) -> NDArray[np.unsignedinteger]:
        """Return the ids of a slice, whose step is 1.

        Raises:
            DataError: a block that it touches is damaged; the message names the file and the bytes.
        """
        first, last, _ = part.indices(len(self))
        first *= self._dtype.itemsize
        last = max(first, last * self._dtype.itemsize)
        self._verify(first, last)
        return np.frombuffer(self._read(first, last), dtype=self._dtype)

    def verify(self) -> None:
        """Read every block and compare its digest, unless this was done before.

        Raises:
            DataError: one differs; the message names the file and the bytes.
        """
        self._verify(0, self._num_bytes)

    def _verify(self, first: int, last: int) -> None:
        # What was checked before the file was written to says nothing of now.
        now = os.fstat(self._file)
        state = (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        if state != self._state:
            self._checked.clear()
            self._state = state

        for start in range(first - first % BLOCK_BYTES, last, BLOCK_BYTES):
            if start in self._checked:
                continue
            stop = min(start + BLOCK_BYTES, self._num_bytes)
            digest = hashlib.sha256(self._read(start, stop)).digest()
            place = start // BLOCK_BYTES * DIGEST_BYTES
            if digest != self._digests[place : place + DIGEST_BYTES]:
                raise damaged(self._path, f"is damaged in bytes {start:,} to {stop:,}")
            self._checked.add(start)

    def _read(self, first: int, last: int) -> bytes:
        content = b""
        while len(content) < last - first:
            start = first + len(content)
            try:
                part = os.pread(self._file, last - start, start)
            except OSError as error:
                reason = f"cannot be read in bytes {first:,} to {last:,}: {error.strerror}"
                raise damaged(self._path, reason) from None
            if not part:
                raise damaged(self._path, f"ends before byte {last:,}")
            content += part
        return content


class TokenFile:
    """Appends token ids to a file; on closing it is on the disk, and its blocks' digests are known.

    Attributes:
        digests: of the blocks, one after another.
    """

    def __init__(self, path: Path, dtype: TokenType) -> None:
        self.digests = bytearray()
        self._file = path.open("wb")
        self._dtype = dtype
        self._rest = bytearray()  # of the block that is being written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._file:
            if kind is None:
                if self._rest:
                    self._end_block()
                self._file.flush()
                os.fsync(self._file.fileno())

    def write(self, ids: Sequence[int]) -> None:
        """Append ids.

        Raises:
            OverflowError: the file's type does not hold one of them.
        """
        content = np.array(ids, dtype=self._dtype).tobytes()
        self._file.write(content)
        self._rest += content
        while len(self._rest) >= BLOCK_BYTES:
            self._end_block()

    def _end_block(self) -> None:
        self.digests += hashlib.sha256(self._rest[:BLOCK_BYTES]).digest()
        del self._rest[:BLOCK_BYTES]


def token_dtype(vocab_size: int) -> TokenType:
    """Return the narrowest type that holds every id of a vocabulary, as it stands in a file.

    Raises:
        ConfigError: 32 bits are too few.
    """
    if vocab_size > 2**32:
        raise ConfigError("tokenizer.vocab_size", vocab_size, "must be at most 2^32")
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def damaged(path: Path, what: str) -> DataError:
    """Return the error of a file of a prepared folder: what is wrong with it, and what to do."""
    return DataError(f"{path} {what}; remove {path.parent} and prepare again")
