"""A prepared corpus: its folder on disk, and functions that write, open and verify it.

    tokenizer.json   train.bin, validation.bin: token ids   meta.json: their digest, and facts

`data_sha256` covers the tokenizer and every token. It is computed from the files when a folder is
opened, once per process unless a file has changed since; then the tokens are mapped into memory.
"""

import functools
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rope_exp.corpora import (
    SIDES,
    TRAIN,
    VALIDATION,
    Corpus,
    explaining,
    files_fingerprint,
    library_files,
    newest_commit,
    open_dataset,
    open_library,
    pieces,
)
from rope_exp.errors import ConfigError, DataError, Progress, RecordError, log
from rope_exp.files import (
    explaining_full_disk,
    files_sha256,
    free_bytes,
    is_full,
    json_sha256,
    lock,
    make_folders,
    read_json,
    sync_folder,
    try_lock,
    write_atomically,
    write_json,
)
from rope_exp.identity import facts_of
from rope_exp.sections import DataConfig, TokenizerConfig, is_commit
from rope_exp.tokenizer import (
    build_tokenizer,
    cuts_at_spaces,
    encode,
    pin_tokenizer,
    tokenizer_fingerprint,
    vocab_size,
)

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


def open_prepared(folder: Path, data: DataConfig) -> Prepared:
    """Open a prepared folder and compare its files with their digest.

    Raises:
        DataError: a file is damaged; the message names the folder and the remedy.
    """
    try:
        meta = read_json(folder / META)
        if meta.pop("meta_sha256", None) != json_sha256(meta):
            raise RecordError(f"{META} has changed")
        if data_sha256(folder, meta["vocab_size"]) != meta["data_sha256"]:
            raise RecordError("its files are not those that were prepared")
    except (RecordError, OSError) as error:
        reason = f"{folder} is damaged: {error}; remove it and prepare again"
        raise DataError(reason) from None

    corpus = {"name": data.name, "kind": data.kind, **meta["corpus"]}
    if "path" in corpus:
        # The same content may have been prepared from another path.
        corpus["path"] = data.path
    return Prepared(folder, meta["vocab_size"], meta["data_sha256"], corpus)


def data_sha256(folder: Path, vocab_size: int) -> str:
    """Hash tokenizer.json, the type of ids, and the token files block by block.

    Raises:
        OSError: a file cannot be read.
    """
    tokenizer = hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
    sides = []
    for side in SIDES:
        path = folder / f"{side}.bin"
        state = path.stat()
        sides.append(_digest(path, state.st_size, state.st_mtime_ns))
    return json_sha256([tokenizer, token_dtype(vocab_size).name, *sides])


@functools.cache
def _digest(path: Path, _size: int, _time: int) -> str:
    """Return the digests of a file's blocks, computed once per process unless it has changed."""
    with path.open("rb") as file:
        blocks = iter(functools.partial(file.read, BLOCK_BYTES), b"")
        return "".join(hashlib.sha256(block).hexdigest() for block in blocks)


def token_dtype(vocab_size: int) -> TokenType:
    """Return the narrowest type that holds every id of a vocabulary, as stored in a file."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


# Characters encoded at once, enough for all cores. Encoding takes about 100 bytes a token.
BATCH_CHARS = 1 << 20


class Part(NamedTuple):
    """A document, or a part of a long one, which bounds the memory that encoding takes."""

    side: str
    text: str
    starts: bool  # true for the first part of its document
    ends: bool  # true for the last one


def write_tokens(
    corpus: Corpus, tokenizer: Tokenizer, end_id: int, files: Mapping[str, BinaryIO]
) -> dict[str, dict[str, int]]:
    """Encode every document into the file of its side, at most data.max_tokens per side.

    A split is read until its own side is full.

    Returns:
        documents, text_bytes and tokens, each by side.
    """
    counts = {what: dict.fromkeys(SIDES, 0) for what in ("documents", "text_bytes", "tokens")}
    tokens = counts["tokens"]
    limit = corpus.data.max_tokens or sys.maxsize
    dtype = token_dtype(vocab_size(tokenizer))

    progress = Progress("data", corpus.data.max_tokens)
    for split in corpus.splits:
        for batch in _batches(corpus.documents(split), tokenizer):
            encoded = encode(tokenizer, [part.text for part in batch])
            for part, ids in zip(batch, encoded, strict=True):
                if part.ends:
                    ids.append(end_id)
                num_whole = len(ids)
                ids = ids[: limit - tokens[part.side]]
                if not ids:
                    continue

                files[part.side].write(np.array(ids, dtype).tobytes())
                counts["documents"][part.side] += part.starts
                # Of a part that is cut, as many bytes as its share of tokens.
                num_bytes = len(part.text.encode()) * len(ids) // num_whole
                counts["text_bytes"][part.side] += num_bytes
                tokens[part.side] += len(ids)
                if tokens[split] == limit:
                    break

            num_documents = sum(counts["documents"].values())
            words = f"{num_documents:,} documents, {sum(tokens.values()):,} tokens"
            progress.show(tokens[TRAIN], words)
            if tokens[split] == limit:
                break
    return counts


def _batches(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[list[Part]]:
    """Collect documents into batches; long ones are cut where the tokenizer also cuts them."""
    can_cut = cuts_at_spaces(tokenizer)
    batch: list[Part] = []
    num_chars = 0

    for side, text in documents:
        parts = list(pieces(text)) if can_cut else [text]
        for number, part in enumerate(parts, start=1):
            batch.append(Part(side, part, number == 1, number == len(parts)))
            num_chars += len(part)
            if num_chars >= BATCH_CHARS:
                yield batch
                batch = []
                num_chars = 0

    yield batch


LOCKS = "locks"


def prepare(data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int = 0) -> Prepared:
    """Open the prepared corpus of a config, and make it first if necessary.

    One of several processes makes it, and the others wait.

    Args:
        seq_len: refuse a corpus without a whole window of seq_len + 1 tokens on each side.
    Raises:
        ConfigError: the corpus or tokenizer cannot be used as configured; nothing is left behind.
        DataError: the network failed, or a prepared folder is damaged.
        DiskError: there is no space.
    """
    data = pin_revision(data)
    tokenizer = pin_tokenizer(tokenizer)
    folder = _folder(data, tokenizer)
    if not folder.exists():
        with os.fdopen(_lock(folder)):
            if not folder.exists():
                _make(data, tokenizer, folder, seq_len)

    prepared = open_prepared(folder, data)
    _check_length(prepared.corpus["tokens"], seq_len)
    return prepared


def pin_revision(data: DataConfig) -> DataConfig:
    """Return the config with the commit that data.revision names now.

    A branch, a tag or null may name another corpus later, so the hub is asked for its commit before
    anything depends on it. A revision that is a commit needs no request.

    Raises:
        ConfigError: there is no such dataset or revision.
        DataError: the hub did not answer.
    """
    if data.kind != "hub" or is_commit(data.revision):
        return data

    with explaining("data.path", data.path, from_hub=True):
        return replace(data, revision=newest_commit(str(data.path), data.revision))


def corpus_fingerprint(data: DataConfig) -> str:
    """Return 64 hexadecimal digits that change with the corpus, without network access.

    They hash the name and content of each file of the stdlib corpus; the name, size and time of
    each local file; the path, subset and commit of a dataset of the hub.

    Raises:
        ConfigError: data.path is missing or holds no file that could be read.
    """
    if data.kind == "stdlib":
        return files_sha256(library_files())
    if data.kind == "files":
        return files_fingerprint(data)
    return json_sha256([data.path, data.subset, data.revision])


def _folder(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """Return the folder of a config's prepared corpus, which may not exist yet."""
    values = {
        "format": FORMAT,
        "corpus": corpus_fingerprint(data),
        "data": {name: getattr(data, name) for name in facts_of(DataConfig, "of_tokens")},
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }
    cache = data.cache_dir or os.environ.get("ROPE_EXP_CACHE") or "~/.cache/rope_exp"
    return Path(cache).expanduser().absolute() / json_sha256(values)[:16]


def _lock(folder: Path) -> int:
    """Acquire the lock of one preparation; log a line before waiting for it."""
    cache = folder.parent
    try:
        make_folders(cache / LOCKS)
        held = try_lock(cache / LOCKS / folder.name)
        if held is None:
            log(f"data: another process prepares {folder}; waiting for it")
            held = lock(cache / LOCKS / folder.name)
    except OSError as error:
        if is_full(error):
            raise
        reason = f"cannot be written: {error.strerror}"
        raise ConfigError("data.cache_dir", str(cache), reason) from None
    return held


def _make(data: DataConfig, config: TokenizerConfig, folder: Path, seq_len: int) -> None:
    """Prepare into a hidden sibling of `folder`, then rename it. The caller holds the lock."""
    cache = folder.parent
    temporary = cache / f".{folder.name}"
    # An interrupted preparation may have left it.
    shutil.rmtree(temporary, ignore_errors=True)

    corpus = open_library(data) if data.kind == "stdlib" else open_dataset(data)
    # The size of the tokens is unknown; if the disk fills up, it exceeds the free space.
    with explaining_full_disk(cache, free_bytes(cache), f"preparing data={data.name}"):
        try:
            temporary.mkdir()
            _write(temporary, corpus, config, seq_len)
            if _folder(data, config) != folder:
                reason = "its files changed while they were read; try again"
                raise DataError(f"data.path={data.path}: {reason}")
            temporary.rename(folder)
            sync_folder(cache)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, corpus: Corpus, config: TokenizerConfig, seq_len: int) -> None:
    """Write the files of a prepared corpus."""
    data = corpus.data
    if config.kind == "bpe":
        log("data: training the tokenizer")
    tokenizer, end_id = build_tokenizer(config, corpus.train_texts())
    write_atomically(folder / TOKENIZER, tokenizer.to_str())

    paths = [folder / f"{side}.bin" for side in SIDES]
    with paths[0].open("wb") as train, paths[1].open("wb") as validation:
        files = {TRAIN: train, VALIDATION: validation}
        counts = write_tokens(corpus, tokenizer, end_id, files)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())

    _check_sides(data, counts["documents"])
    _check_length(counts["tokens"], seq_len)
    facts = {
        **corpus.facts,
        "validation": "its own" if VALIDATION in corpus.splits else "held out",
        "fingerprint": corpus_fingerprint(data),
        "tokenizers": version("tokenizers"),
        "end_id": end_id,
        **counts,
    }
    meta = {
        "format": FORMAT,
        "vocab_size": vocab_size(tokenizer),
        "data_sha256": data_sha256(folder, vocab_size(tokenizer)),
        "corpus": facts,
    }
    write_json(folder / META, {**meta, "meta_sha256": json_sha256(meta)})


def _check_sides(data: DataConfig, num_documents: Mapping[str, int]) -> None:
    """Refuse a corpus without text, or without a document on one of the sides."""
    total = sum(num_documents.values())
    if total == 0:
        hint = f"of a table, the column data.text_column={data.text_column} is read"
        raise ConfigError("data.path", data.path, f"holds no text; {hint}")

    for side in SIDES:
        if num_documents[side] == 0:
            reason = (
                f"leaves no document for {side} of the corpus's {total}; choose one that does, or "
                "more documents (of plain text, data.sample_by=line makes each line one)"
            )
            raise ConfigError("data.holdout_fraction", data.holdout_fraction, reason)


def _check_length(num_tokens: Mapping[str, int], seq_len: int) -> None:
    for side in SIDES:
        if num_tokens[side] < seq_len + 1:
            reason = f"the corpus has {num_tokens[side]} for {side}"
            raise ConfigError(
                "train.seq_len", seq_len, f"a window needs {seq_len + 1} tokens and {reason}"
            )
