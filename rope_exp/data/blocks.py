"""Preparation: a corpus and a tokenizer become two memory-mapped files of token ids, made once and then only read.

    <cache>/<key>/tokenizer.json  train.bin  validation.bin  meta.json

A document's ids are followed by the end-of-text id, and documents by each other; ids are 16 bits wide where the
vocabulary allows. The key hashes what the tokens depend on. A folder is made under a hidden name, under a lock, and
renamed when it is whole and on the disk: whoever finds `<key>` can trust it, and a preparation that dies leaves nothing
that is read.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rope_exp.config import DataConfig, TokenizerConfig
from rope_exp.data.corpus import corpus_fingerprint, open_corpus
from rope_exp.data.documents import TRAIN, VALIDATION, Corpus, DataError
from rope_exp.data.tokens import TokenType, build_tokenizer, encode, token_dtype, tokenizer_fingerprint, vocab_size
from rope_exp.progress import PreparationProgress
from rope_exp.record import DiskError, RecordError, check_space, read_json, sync_folder, write_atomically, write_json
from rope_exp.schema import ConfigError

FORMAT = 1  # of the folder; part of its key
META, TOKENIZER, LOCKS = "meta.json", "tokenizer.json", "locks"
SIDES = (TRAIN, VALIDATION)
BATCH_BYTES = 1 << 20  # of text encoded at once: enough for all cores; an encoding takes about 100 bytes a token
BLOCK_BYTES = 8 << 20  # of a .bin file under one digest
UNNUMBERED = ("name", "path", "cache_dir", "seed")  # keys of data that change no token (path: the fingerprint does)


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus.

    Attributes:
        folder: where its files are.
        vocab_size: one more than the largest id.
        data_sha256: of the tokenizer and of every token.
        corpus: what the record says of it (source, fingerprint, counts of documents, bytes and tokens).
    """

    folder: Path
    vocab_size: int
    data_sha256: str
    corpus: dict[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        """tokenizer.json, for `load_tokenizer`."""
        return self.folder / TOKENIZER

    @property
    def train(self) -> NDArray[np.unsignedinteger]:
        """The training tokens, 1-D, memory-mapped."""
        return self._tokens(TRAIN)

    @property
    def validation(self) -> NDArray[np.unsignedinteger]:
        """The held-out tokens, 1-D, memory-mapped."""
        return self._tokens(VALIDATION)

    def verify(self) -> None:
        """Read every block and compare its digest.

        Raises:
            DataError: one differs; the message names the file.
        """
        meta = read_json(self.folder / META)
        for side in SIDES:
            with (self.folder / f"{side}.bin").open("rb") as file:
                found = [hashlib.sha256(block).hexdigest() for block in iter(lambda: file.read(BLOCK_BYTES), b"")]
            if found != meta["block_sha256"][side]:
                raise DataError(f"{self.folder / side}.bin is damaged; remove {self.folder} and prepare again")

    def _tokens(self, side: str) -> NDArray[np.unsignedinteger]:
        return np.memmap(self.folder / f"{side}.bin", dtype=token_dtype(self.vocab_size), mode="r")


def prepare(data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int | None = None) -> Prepared:
    """Find the token blocks of a config, or make them; of several processes one makes them and the others wait.

    Args:
        seq_len: refuse a corpus without a whole window of seq_len + 1 tokens on each side.
    Raises:
        ConfigError: the corpus or tokenizer cannot be used as configured; nothing is left behind.
        DataError: the network failed, or a prepared folder is damaged. DiskError: no space.
    """
    fingerprint = corpus_fingerprint(data)
    cache, key = cache_folder(data), _key(data, tokenizer, fingerprint)
    folder = cache / key
    if not folder.exists():
        with _lock(cache, key):
            if not folder.exists():
                _make(data, tokenizer, fingerprint, folder, seq_len)
    prepared = _open(folder, data)
    if seq_len is not None:
        _check_length(prepared.corpus["tokens"], seq_len)
    return prepared


def cache_folder(data: DataConfig) -> Path:
    """data.cache_dir, or the environment's ROPE_EXP_CACHE, or ~/.cache/rope_exp."""
    return Path(data.cache_dir or os.environ.get("ROPE_EXP_CACHE") or "~/.cache/rope_exp").expanduser().absolute()


def _key(data: DataConfig, tokenizer: TokenizerConfig, fingerprint: str) -> str:
    numbered = {name: value for name, value in asdict(data).items() if name not in UNNUMBERED}
    values = {
        "format": FORMAT,
        "corpus": fingerprint,
        "data": numbered,
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def _lock(cache: Path, key: str) -> Iterator[None]:
    """Hold the lock of one preparation; whoever waits for it says so."""
    try:
        (cache / LOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / LOCKS / key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"data: another process prepares {cache / key}; waiting for it", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        raise ConfigError("data.cache_dir", str(cache), f"cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def _open(folder: Path, data: DataConfig) -> Prepared:
    try:
        meta = read_json(folder / META)
        prepared = Prepared(
            folder, meta["vocab_size"], meta["data_sha256"], {"name": data.name, "kind": data.kind, **meta["corpus"]}
        )
        if _file_sha256(prepared.tokenizer_file) != meta["tokenizer_sha256"]:
            raise ValueError("its tokenizer.json has changed")
        for side in SIDES:
            if len(prepared._tokens(side)) != prepared.corpus["tokens"][side]:
                raise ValueError(f"its {side}.bin is too short or too long")
    except (RecordError, KeyError, ValueError, OSError) as error:
        raise DataError(f"{folder} is damaged ({error}); remove it and prepare again") from None
    return prepared


def _check_length(num_tokens: Mapping[str, int], seq_len: int) -> None:
    for side in SIDES:
        if num_tokens[side] < seq_len + 1:
            raise ConfigError(
                "train.seq_len",
                seq_len,
                f"a window needs {seq_len + 1} tokens and the corpus has {num_tokens[side]} for {side}",
            )


def _make(data: DataConfig, config: TokenizerConfig, fingerprint: str, folder: Path, seq_len: int | None) -> None:
    """Prepare into a hidden sibling of `folder`, then rename it. The caller holds the lock."""
    for stale in folder.parent.glob(f".{folder.name}.*"):  # of a preparation that died, since the lock is ours
        shutil.rmtree(stale)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    needed_bytes = 0
    try:
        temporary.mkdir()
        corpus = open_corpus(data)
        needed_bytes = _estimate_bytes(corpus, data, config)
        check_space(folder.parent, needed_bytes, f"the tokens of data={data.name}")
        if config.kind == "bpe":
            print("data: training the tokenizer", file=sys.stderr, flush=True)
        tokenizer, end_id = build_tokenizer(config, corpus.train_texts())
        write_atomically(temporary / TOKENIZER, tokenizer.to_str())
        dtype = token_dtype(vocab_size(tokenizer))
        with ExitStack() as stack:
            files = {side: stack.enter_context(TokenFile(temporary / f"{side}.bin", dtype)) for side in SIDES}
            counts = write_tokens(corpus, tokenizer, end_id, files, data.max_tokens)
        _check_sides(data, counts["documents"])
        if seq_len is not None:
            _check_length(counts["tokens"], seq_len)
        if corpus_fingerprint(data) != fingerprint:
            raise DataError(f"data.path={data.path}: its files changed while they were read; try again")
        facts = {
            **corpus.facts,
            "fingerprint": fingerprint,
            "tokenizers": version("tokenizers"),
            "end_id": end_id,
            **counts,
        }
        write_json(temporary / META, _meta(temporary, tokenizer, files, facts))
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(folder.parent).free
            raise DiskError(
                f"no space left in {folder.parent}: the tokens of data={data.name} need about {needed_bytes:,} bytes "
                f"and {free:,} are free; make room or choose another data.cache_dir"
            ) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _estimate_bytes(corpus: Corpus, data: DataConfig, config: TokenizerConfig) -> int:
    """Disk space that the tokens need at most, about; 0 where nothing is known beforehand."""
    width = 2 if config.kind == "bytes" or (config.vocab_size is not None and config.vocab_size <= 2**16) else 4
    bounds = []
    if corpus.text_bytes is not None:
        bytes_a_token = 1 if config.kind == "bytes" else 2  # on the safe side; text of all languages: 2.5 to 5
        bounds.append(corpus.text_bytes // bytes_a_token)
    if data.max_tokens is not None:
        bounds.append(2 * data.max_tokens)
    return width * min(bounds, default=0)


def _check_sides(data: DataConfig, num_documents: Mapping[str, int]) -> None:
    total = sum(num_documents.values())
    if total == 0:
        raise ConfigError(
            "data.text_column" if data.text_column else "data.path",
            data.text_column or data.path,
            "the corpus holds no text",
        )
    for side in SIDES:
        if num_documents[side] == 0:
            one = data.kind == "files" and data.sample_by == "document" and total == 1
            key, value = ("data.sample_by", data.sample_by) if one else ("data.holdout_fraction", data.holdout_fraction)
            hint = "; data.sample_by=line makes each line a document" if one else ""
            raise ConfigError(key, value, f"leaves no document for {side} of the corpus's {total}{hint}")


def _meta(
    folder: Path, tokenizer: Tokenizer, files: Mapping[str, "TokenFile"], corpus: dict[str, Any]
) -> dict[str, Any]:
    blocks = {side: file.block_sha256 for side, file in files.items()}
    tokenizer_sha256 = _file_sha256(folder / TOKENIZER)
    size = vocab_size(tokenizer)
    identity = [tokenizer_sha256, np.dtype(token_dtype(size)).name, blocks[TRAIN], blocks[VALIDATION]]
    return {
        "format": FORMAT,
        "vocab_size": size,
        "data_sha256": hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        "tokenizer_sha256": tokenizer_sha256,
        "block_sha256": blocks,
        "corpus": corpus,
    }


def write_tokens(
    corpus: Corpus, tokenizer: Tokenizer, end_id: int, files: Mapping[str, "TokenFile"], max_tokens: int | None
) -> dict[str, dict[str, int]]:
    """Encode every document into the file of its side, at most max_tokens a side.

    Returns:
        documents, text_bytes and tokens, each by side.
    """
    counts = {what: dict.fromkeys(SIDES, 0) for what in ("documents", "text_bytes", "tokens")}
    report = PreparationProgress(corpus.text_bytes, max_tokens)
    end = np.array([end_id], dtype=np.uint32)
    for split in corpus.splits:
        full = False
        with closing(corpus.documents(split)) as documents:
            for batch in _batches(documents):
                ids: dict[str, list[NDArray[np.uint32]]] = {side: [] for side in SIDES}
                for (side, text), of_one in zip(batch, encode(tokenizer, [text for _, text in batch]), strict=True):
                    room = len(of_one) + 1 if max_tokens is None else max_tokens - counts["tokens"][side]
                    if room == 0:
                        continue
                    ids[side] += [of_one[:room], end[: max(0, room - len(of_one))]]
                    counts["documents"][side] += 1
                    counts["text_bytes"][side] += len(text.encode())
                    counts["tokens"][side] += min(room, len(of_one) + 1)
                    full = counts["tokens"][split] == max_tokens
                    if full:
                        break
                for side, file in files.items():
                    file.write(np.concatenate(ids[side]) if ids[side] else end[:0])
                report.update(counts)
                if full:
                    break
    report.close()
    return counts


def _batches(documents: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    size = 0
    for side, text in documents:
        batch.append((side, text))
        size += len(text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class TokenFile:
    """Appends token ids to a file; on closing it is on the disk, and its blocks' digests are known."""

    def __init__(self, path: Path, dtype: TokenType) -> None:
        self._file, self._dtype, self._max_id = path.open("wb"), np.dtype(dtype).newbyteorder("<"), np.iinfo(dtype).max
        self._digest, self._filled = hashlib.sha256(), 0  # of the block that is being written
        self.block_sha256: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._file:
            if error is None:
                if self._filled:
                    self.block_sha256.append(self._digest.hexdigest())
                self._file.flush()
                os.fsync(self._file.fileno())

    def write(self, ids: NDArray[np.uint32]) -> None:
        """Append."""
        assert ids.max(initial=0) <= self._max_id, "a token id would wrap"
        rest = memoryview(ids.astype(self._dtype).tobytes())
        self._file.write(rest)
        while len(rest):
            part = rest[: BLOCK_BYTES - self._filled]
            self._digest.update(part)
            self._filled, rest = self._filled + len(part), rest[len(part) :]
            if self._filled == BLOCK_BYTES:
                self.block_sha256.append(self._digest.hexdigest())
                self._digest, self._filled = hashlib.sha256(), 0


def _file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
