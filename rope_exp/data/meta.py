"""A prepared corpus: its folder on disk, and functions that write, open and verify it.

    tokenizer.json   train.bin, validation.bin: token ids   meta.json: their digest, and facts

`data_sha256` covers the tokenizer and every token. It is computed from the files when a folder is
opened, once per process unless a file has changed since; then the tokens are mapped into memory.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import SIDES, TRAIN
from rope_exp.system.errors import ConfigError, DataError, RecordError
from rope_exp.system.files import json_sha256, read_json, write_json

FORMAT = 3  # of the folder
META = "meta.json"
TOKENIZER = "tokenizer.json"

# data_sha256 is a digest of digests, one for each block of this size of a .bin file.
BLOCK_BYTES = 64 << 10

TokenType = np.dtype[np.unsignedinteger]
Tokens = NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus.

    Attributes:
        folder: the folder of its files.
        vocab_size: one more than the largest id.
        data_sha256: of the tokenizer and of every token.
        corpus: its record (source, fingerprint; documents, bytes and tokens).
    """

    folder: Path
    vocab_size: int
    data_sha256: str
    corpus: dict[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        """The path of tokenizer.json, for `load_tokenizer`."""
        return self.folder / TOKENIZER

    @property
    def num_train_tokens(self) -> int:
        """The number of tokens of one epoch."""
        return len(self.tokens[TRAIN])

    @property
    def tokenizer_json(self) -> str:
        """The content of tokenizer.json."""
        return self.tokenizer_file.read_text(encoding="utf-8")

    @functools.cached_property
    def tokens(self) -> dict[str, Tokens]:
        """The ids of each side, mapped into memory."""
        dtype = token_dtype(self.vocab_size)
        # A plain array is sliced faster than a memmap.
        return {
            side: np.memmap(self.folder / f"{side}.bin", dtype, "r").view(np.ndarray)
            for side in SIDES
        }


def write_meta(folder: Path, vocab_size: int, corpus: dict[str, Any]) -> None:
    """Write meta.json beside the complete tokenizer and token files."""
    values = {
        "format": FORMAT,
        "vocab_size": vocab_size,
        "data_sha256": data_sha256(folder, vocab_size),
        "corpus": corpus,
    }
    write_json(folder / META, {**values, "meta_sha256": json_sha256(values)})


def read_meta(folder: Path) -> dict[str, Any]:
    """Read meta.json, and check it against its own digest.

    Raises:
        DataError: it is damaged.
    """
    try:
        values = read_json(folder / META)
    except RecordError as error:
        raise damaged(folder, str(error)) from None
    if values.pop("meta_sha256", None) != json_sha256(values):
        raise damaged(folder, f"{META} has changed")
    return values


def open_prepared(folder: Path, data: DataConfig) -> Prepared:
    """Open a prepared folder and compare its files with their digest.

    Raises:
        DataError: a file is damaged; the message names the folder and the remedy.
    """
    meta = read_meta(folder)
    corpus = {"name": data.name, "kind": data.kind, **meta["corpus"]}
    if "path" in corpus:
        # The same content may have been prepared from another path.
        corpus["path"] = data.path

    if data_sha256(folder, meta["vocab_size"]) != meta["data_sha256"]:
        raise damaged(folder, "its files are not those that were prepared")
    return Prepared(folder, meta["vocab_size"], meta["data_sha256"], corpus)


def data_sha256(folder: Path, vocab_size: int) -> str:
    """Hash tokenizer.json, the type of ids, and the token files block by block.

    Raises:
        DataError: a file is missing, or cannot be read.
    """
    paths = (folder / TOKENIZER, *(folder / f"{side}.bin" for side in SIDES))
    try:
        states = [path.stat() for path in paths]
        times = tuple((state.st_size, state.st_mtime_ns) for state in states)
        tokenizer, *sides = _digests(paths, times)
    except OSError as error:
        raise damaged(folder, f"{error.filename} cannot be read: {error.strerror}") from None
    return json_sha256([tokenizer, token_dtype(vocab_size).name, *sides])


@functools.cache
def _digests(paths: tuple[Path, ...], times: tuple[tuple[int, int], ...]) -> list[str]:
    """Hash the first file whole and the others by blocks, once per process for the same `times`."""
    tokenizer, *sides = paths
    digests = [hashlib.sha256(tokenizer.read_bytes()).hexdigest()]
    for path in sides:
        with path.open("rb") as file:
            blocks = iter(functools.partial(file.read, BLOCK_BYTES), b"")
            digests.append("".join(hashlib.sha256(block).hexdigest() for block in blocks))
    return digests


def token_dtype(vocab_size: int) -> TokenType:
    """Return the narrowest type that holds every id of a vocabulary, as stored in a file.

    Raises:
        ConfigError: 32 bits are too few.
    """
    if vocab_size > 2**32:
        raise ConfigError("tokenizer.vocab_size", vocab_size, "must be at most 2^32")
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def damaged(folder: Path, reason: str) -> DataError:
    """Return the error of a prepared folder: the reason, and the remedy."""
    return DataError(f"{folder} is damaged: {reason}; remove it and prepare again")
