"""Token ids on the disk: written once, with a digest a block, and verified before they are used.

Blocks are small, so that the first steps on a large corpus, each of whose windows lies in a block
not seen before, hash little: at 2 GB/s a block takes 30 microseconds. Their digests take a
thousandth of the corpus's size.
"""

import hashlib
import os
import weakref
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rope_exp.data.tokenizer import TokenType
from rope_exp.system.errors import DataError
from rope_exp.system.files import descriptor_of

BLOCK_BYTES = 64 << 10  # of a .bin file under one digest
DIGEST_BYTES = 32  # of one block's SHA-256


class Tokens:
    """The ids of one .bin file: `len(tokens)`, and `tokens[first:last]` as a read-only array.

    A block is read and hashed when this process first hands out ids of it. From then on it costs
    a look into a set, until the file is seen to have changed.

    Nothing is memory-mapped: where a file is cut while we run, or a sector cannot be read, a map
    ends the process by SIGBUS, and a read is an error that can be said.
    """

    def __init__(self, path: Path, dtype: TokenType, digests: bytes) -> None:
        """Open a file; `digests` are those of its blocks, one after another.

        Raises:
            DataError: it cannot be opened, or its size is not that of the blocks.
        """
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._digests = digests
        try:
            self._file = descriptor_of(path)
        except OSError as error:
            raise self._damaged(f"cannot be opened: {error.strerror}") from None
        weakref.finalize(self, os.close, self._file)

        self._checked: set[int] = set()
        self._state = self._stat()
        self._num_bytes = self._state[0]

        num_blocks = len(digests) / DIGEST_BYTES
        if self._num_bytes % self._dtype.itemsize or _num_blocks(self._num_bytes) != num_blocks:
            raise self._damaged("is too short or too long")

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
        """Read every block and compare its digest.

        Raises:
            DataError: one differs; the message names the file and the bytes.
        """
        self._checked.clear()
        self._verify(0, self._num_bytes)

    def _verify(self, first: int, last: int) -> None:
        # What was checked before the file was written to says nothing of now.
        state = self._stat()
        if state != self._state:
            self._checked.clear()
            self._state = state

        for block in range(first // BLOCK_BYTES, _num_blocks(last)):
            if block in self._checked:
                continue
            start = block * BLOCK_BYTES
            stop = min(start + BLOCK_BYTES, self._num_bytes)
            digest = hashlib.sha256(self._read(start, stop)).digest()
            if digest != self._digests[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES]:
                raise self._damaged(f"is damaged in bytes {start:,} to {stop:,}")
            self._checked.add(block)

    def _read(self, first: int, last: int) -> bytes:
        content = b""
        while len(content) < last - first:
            start = first + len(content)
            try:
                part = os.pread(self._file, last - start, start)
            except OSError as error:
                reason = f"cannot be read in bytes {first:,} to {last:,}: {error.strerror}"
                raise self._damaged(reason) from None
            if not part:
                raise self._damaged(f"ends before byte {last:,}")
            content += part
        return content

    def _stat(self) -> tuple[int, int, int]:
        state = os.fstat(self._file)
        return state.st_size, state.st_mtime_ns, state.st_ctime_ns

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self._path} {what}; remove {self._path.parent} and prepare again")


class TokenFile:
    """Appends token ids to a file; on closing it is on the disk, and its blocks' digests are known.

    Attributes:
        num_bytes: written so far.
        digests: of the blocks, one after another.
    """

    def __init__(self, path: Path, dtype: TokenType) -> None:
        self.num_bytes = 0
        self.digests = bytearray()
        self._file = path.open("wb")
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._max_id = np.iinfo(dtype).max
        self._digest = hashlib.sha256()  # of the block that is being written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        with self._file:
            if error is None:
                if self.num_bytes % BLOCK_BYTES:
                    self.digests += self._digest.digest()
                self._file.flush()
                os.fsync(self._file.fileno())

    def write(self, ids: NDArray[np.uint32]) -> None:
        """Append ids, each of which the file's type holds."""
        assert ids.max(initial=0) <= self._max_id, "a token id would wrap"
        rest = memoryview(ids.astype(self._dtype).tobytes())
        self._file.write(rest)

        while len(rest):
            part = rest[: BLOCK_BYTES - self.num_bytes % BLOCK_BYTES]
            rest = rest[len(part) :]
            self._digest.update(part)
            self.num_bytes += len(part)
            if self.num_bytes % BLOCK_BYTES == 0:
                self.digests += self._digest.digest()
                self._digest = hashlib.sha256()


def _num_blocks(num_bytes: int) -> int:
    return -(-num_bytes // BLOCK_BYTES)
