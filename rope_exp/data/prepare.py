"""Preparation: a corpus and a tokenizer become two files of token ids, made once and then only read.

    <cache>/<key>/tokenizer.json  train.bin  validation.bin  meta.json

A document's ids are followed by the end-of-text id, and documents by each other; ids are 16 bits wide where the
vocabulary allows. The key hashes what the tokens depend on. A folder is made under a hidden name, under a lock, and
renamed when it is whole and on the disk: whoever finds `<key>` finds all of it, and a preparation that dies leaves
nothing that is read. What a disk or a hand did to it since is found: meta.json and tokenizer.json are verified
whenever a folder is opened, and a block of tokens before the first of its ids is handed out (store.py).
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rope_exp.config.schema import Count, Natural, Rule, Sha256, convert
from rope_exp.config.sections import DataConfig, TokenizerConfig
from rope_exp.data.corpus import corpus_fingerprint, open_corpus
from rope_exp.data.documents import TRAIN, VALIDATION, Corpus
from rope_exp.data.files import within_limits
from rope_exp.data.store import DIGEST_BYTES, TokenFile, Tokens, read_plain
from rope_exp.data.tokenizer import (
    build_tokenizer,
    cuts_at_spaces,
    encode,
    pieces,
    token_dtype,
    tokenizer_fingerprint,
    vocab_size,
)
from rope_exp.system.console import PreparationProgress, say
from rope_exp.system.errors import ConfigError, DataError, DiskError, first_line
from rope_exp.system.files import (
    check_space,
    disk_full,
    is_full,
    json_sha256,
    sync_folder,
    write_atomically,
    write_json,
)

FORMAT = 2  # of the folder; part of its key
META, TOKENIZER, LOCKS = "meta.json", "tokenizer.json", "locks"
SIDES = (TRAIN, VALIDATION)
COUNTS = ("documents", "text_bytes", "tokens")  # of each side, in meta.json
META_BYTES = (
    1 << 20
)  # of meta.json at most, beside a 64th of the tokens' size, of which digests take a thousandth
TOKENIZER_BYTES = (
    1 << 30
)  # of tokenizer.json at most; those of the largest vocabularies have some 2^25
BATCH_BYTES = (
    1 << 20
)  # of text encoded at once: enough for all cores; an encoding takes about 100 bytes a token
UNNUMBERED = (
    "name",
    "path",
    "cache_dir",
    "seed",
)  # keys of data that change no token (path: the fingerprint does)


Digests = Annotated[
    str,
    Rule(
        f"must be digests of {2 * DIGEST_BYTES} hexadecimal digits",
        lambda text: (
            len(text) % (2 * DIGEST_BYTES) == 0 and re.fullmatch("[0-9a-f]+", text) is not None
        ),
    ),
]


@dataclass(frozen=True)
class BySide:
    """A count of each side."""

    train: Natural
    validation: Natural


@dataclass(frozen=True)
class BlockDigests:
    """The digests of each side's blocks, one after another."""

    train: Digests
    validation: Digests


@dataclass(frozen=True)
class Meta:
    """meta.json, without its group `corpus`."""

    format: Annotated[int, Rule(f"must be {FORMAT}", lambda number: number == FORMAT)]
    vocab_size: Count
    data_sha256: Sha256
    tokenizer_sha256: Sha256
    meta_sha256: Sha256
    block_sha256: BlockDigests


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus.

    Attributes:
        folder: where its files are.
        vocab_size: one more than the largest id.
        data_sha256: of the tokenizer and of every token.
        corpus: what the record says of it (source, fingerprint, counts of documents, bytes and tokens).
        digests: of the blocks of each side, one after another.
    """

    folder: Path
    vocab_size: int
    data_sha256: str
    corpus: dict[str, Any]
    digests: Mapping[str, bytes] = field(repr=False)

    @property
    def tokenizer_file(self) -> Path:
        """tokenizer.json, for `load_tokenizer`."""
        return self.folder / TOKENIZER

    @property
    def train(self) -> Tokens:
        """The training tokens."""
        return self._tokens(TRAIN)

    @property
    def validation(self) -> Tokens:
        """The held-out tokens."""
        return self._tokens(VALIDATION)

    def verify(self) -> None:
        """Read every block and compare its digest.

        Raises:
            DataError: one differs; the message names the file.
        """
        for side in SIDES:
            self._tokens(side).verify()

    def _tokens(self, side: str) -> Tokens:
        return Tokens(self.folder / f"{side}.bin", token_dtype(self.vocab_size), self.digests[side])


def prepare(
    data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int | None = None
) -> Prepared:
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
    if not os.path.lexists(folder):
        with _lock(cache, key):
            if not os.path.lexists(folder):
                _make(data, tokenizer, fingerprint, folder, seq_len)
    prepared = _open(folder, data)
    if seq_len is not None:
        _check_length(prepared.corpus["tokens"], seq_len)
    return prepared


def cache_folder(data: DataConfig) -> Path:
    """data.cache_dir, or the environment's ROPE_EXP_CACHE, or ~/.cache/rope_exp."""
    return (
        Path(data.cache_dir or os.environ.get("ROPE_EXP_CACHE") or "~/.cache/rope_exp")
        .expanduser()
        .absolute()
    )


def _key(data: DataConfig, tokenizer: TokenizerConfig, fingerprint: str) -> str:
    numbered = {name: value for name, value in asdict(data).items() if name not in UNNUMBERED}
    values = {
        "format": FORMAT,
        "corpus": fingerprint,
        "data": numbered,
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }
    return json_sha256(values)[:16]


@contextmanager
def _lock(cache: Path, key: str) -> Iterator[None]:
    """Hold the lock of one preparation; whoever waits for it says so."""
    try:
        (cache / LOCKS).mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / LOCKS / key)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"data: another process prepares {cache / key}; waiting for it")
            lock.acquire()
    except OSError as error:
        if is_full(error):
            raise disk_full(cache, 0, "the lock of a preparation") from None
        raise ConfigError(
            "data.cache_dir", str(cache), f"cannot be written: {error.strerror}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _open(folder: Path, data: DataConfig) -> Prepared:
    """A prepared folder, its meta.json checked against itself and against the sizes of the other files."""
    if folder.is_symlink() or not folder.is_dir():
        raise DataError(
            f"{folder} is a link or a file, not a prepared folder; remove it and prepare again"
        )
    try:
        num_bytes = sum(path.lstat().st_size for path in folder.glob("*.bin"))
        content = read_plain(folder / META, META_BYTES + num_bytes // 64)
        values = json.loads(content, object_pairs_hook=_object)
        meta: Meta = convert(
            Meta, {key: value for key, value in values.items() if key != "corpus"}, ""
        )
        corpus = _check_corpus(values["corpus"], meta.vocab_size)
        if meta.meta_sha256 != _meta_sha256(values):
            raise ValueError("its contents have changed")
        blocks = asdict(meta.block_sha256)
        if meta.data_sha256 != _data_sha256(meta.tokenizer_sha256, meta.vocab_size, blocks):
            raise ValueError("its data_sha256 is not that of its digests")
    except (ConfigError, KeyError, AttributeError, ValueError, RecursionError, OSError) as error:
        raise DataError(
            f"{folder / META} is damaged ({first_line(error)}); remove {folder} and prepare again"
        ) from None
    tokenizer = read_plain(folder / TOKENIZER, TOKENIZER_BYTES)
    if hashlib.sha256(tokenizer).hexdigest() != meta.tokenizer_sha256:
        raise DataError(f"{folder / TOKENIZER} has changed; remove {folder} and prepare again")
    digests = {side: bytes.fromhex(blocks[side]) for side in SIDES}
    prepared = Prepared(
        folder,
        meta.vocab_size,
        meta.data_sha256,
        {"name": data.name, "kind": data.kind, **corpus},
        digests,
    )
    for side in SIDES:
        if len(prepared._tokens(side)) != corpus["tokens"][side]:
            raise DataError(
                f"{folder / side}.bin is too short or too long; remove {folder} and prepare again"
            )
    return prepared


def _check_corpus(corpus: Any, size: int) -> dict[str, Any]:
    """meta.json's facts of the corpus, the counts among them checked."""
    if not isinstance(corpus, dict):
        raise ValueError("corpus must be a group of keys")
    for what in COUNTS:
        convert(BySide, corpus.get(what), f"corpus.{what}")
    if not (type(corpus.get("end_id")) is int and 0 <= corpus["end_id"] < size):
        raise ValueError("corpus.end_id must be the id of a token")
    return corpus


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key stands twice")
    return values


def _check_length(num_tokens: Mapping[str, int], seq_len: int) -> None:
    for side in SIDES:
        if num_tokens[side] < seq_len + 1:
            raise ConfigError(
                "train.seq_len",
                seq_len,
                f"a window needs {seq_len + 1} tokens and the corpus has {num_tokens[side]} for {side}",
            )


def _make(
    data: DataConfig, config: TokenizerConfig, fingerprint: str, folder: Path, seq_len: int | None
) -> None:
    """Prepare into a hidden sibling of `folder`, then rename it. The caller holds the lock."""
    for stale in folder.parent.glob(
        f".{folder.name}.*"
    ):  # of a preparation that died, since the lock is ours
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale)
        else:
            stale.unlink()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    needed_bytes = 0
    files: dict[str, TokenFile] = {}
    try:
        temporary.mkdir()
        corpus = open_corpus(data)
        splits = {side: partial(_bounded, read, data) for side, read in corpus.splits.items()}
        corpus = replace(corpus, splits=splits)
        needed_bytes = _estimate_bytes(corpus, data, config)
        check_space(folder.parent, needed_bytes, f"the tokens of data={data.name}")
        if config.kind == "bpe":
            say("data: training the tokenizer")
        tokenizer, end_id = build_tokenizer(config, corpus.train_texts())
        write_atomically(temporary / TOKENIZER, tokenizer.to_str())
        dtype = token_dtype(vocab_size(tokenizer))
        with ExitStack() as stack:
            for side in SIDES:
                files[side] = stack.enter_context(TokenFile(temporary / f"{side}.bin", dtype))
            counts = write_tokens(corpus, tokenizer, end_id, files, data.max_tokens)
        _check_sides(data, counts["documents"])
        if seq_len is not None:
            _check_length(counts["tokens"], seq_len)
        if corpus_fingerprint(data) != fingerprint:
            raise DataError(
                f"data.path={data.path}: its files changed while they were read; try again"
            )
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
        if is_full(error) or isinstance(error, DiskError):
            written = sum(
                file.num_bytes for file in files.values()
            )  # all that is known of a stream's size
            raise disk_full(
                folder.parent,
                max(needed_bytes, written),
                f"what is prepared of data={data.name}, at least,",
            ) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _bounded(read: Callable[[], Iterator[str]], data: DataConfig) -> Iterator[str]:
    return within_limits(read(), data)


def _estimate_bytes(corpus: Corpus, data: DataConfig, config: TokenizerConfig) -> int:
    """Disk space that the tokens need at most, about; 0 where nothing is known beforehand."""
    width = (
        2
        if config.kind == "bytes" or (config.vocab_size is not None and config.vocab_size <= 2**16)
        else 4
    )
    bounds = []
    if corpus.text_bytes is not None:
        bytes_a_token = (
            1 if config.kind == "bytes" else 2
        )  # on the safe side; text of all languages: 2.5 to 5
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
            key, value = (
                ("data.sample_by", data.sample_by)
                if one
                else ("data.holdout_fraction", data.holdout_fraction)
            )
            hint = "; data.sample_by=line makes each line a document" if one else ""
            raise ConfigError(
                key, value, f"leaves no document for {side} of the corpus's {total}{hint}"
            )


def _meta(
    folder: Path, tokenizer: Tokenizer, files: Mapping[str, TokenFile], corpus: dict[str, Any]
) -> dict[str, Any]:
    blocks = {side: file.digests.hex() for side, file in files.items()}
    tokenizer_sha256 = hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
    size = vocab_size(tokenizer)
    values = {
        "format": FORMAT,
        "vocab_size": size,
        "data_sha256": _data_sha256(tokenizer_sha256, size, blocks),
        "tokenizer_sha256": tokenizer_sha256,
        "corpus": corpus,
        "block_sha256": blocks,
    }
    return {"meta_sha256": _meta_sha256(values), **values}


def _data_sha256(tokenizer_sha256: str, size: int, blocks: Mapping[str, str]) -> str:
    return json_sha256(
        [tokenizer_sha256, np.dtype(token_dtype(size)).name, blocks[TRAIN], blocks[VALIDATION]]
    )


def _meta_sha256(values: Mapping[str, Any]) -> str:
    """Of all that meta.json holds but this digest itself."""
    return json_sha256({key: value for key, value in values.items() if key != "meta_sha256"})


def write_tokens(
    corpus: Corpus,
    tokenizer: Tokenizer,
    end_id: int,
    files: Mapping[str, TokenFile],
    max_tokens: int | None,
) -> dict[str, dict[str, int]]:
    """Encode every document into the file of its side, at most max_tokens a side.

    Returns:
        documents, text_bytes and tokens, each by side.
    """
    counts = {what: dict.fromkeys(SIDES, 0) for what in COUNTS}
    report = PreparationProgress(corpus.text_bytes, max_tokens)
    end = np.array([end_id], dtype=np.uint32)
    for split in corpus.splits:
        full = False
        with closing(corpus.documents(split)) as documents:
            for batch in _batches(_parts(documents, tokenizer)):
                ids: dict[str, list[NDArray[np.uint32]]] = {side: [] for side in SIDES}
                for part, found in zip(
                    batch, encode(tokenizer, [part.text for part in batch]), strict=True
                ):
                    side, of_one = part.side, np.concatenate([found, end]) if part.ends else found
                    room = (
                        len(of_one) if max_tokens is None else max_tokens - counts["tokens"][side]
                    )
                    if room == 0:
                        continue
                    ids[side].append(of_one[:room])
                    counts["documents"][side] += part.starts
                    counts["text_bytes"][side] += len(part.text.encode())
                    counts["tokens"][side] += len(of_one[:room])
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


class Part(NamedTuple):
    """A document, or a part of a long one, so that encoding takes no more memory for it."""

    side: str
    text: str
    starts: bool  # its document
    ends: bool


def _parts(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[Part]:
    can_cut = cuts_at_spaces(tokenizer)
    for side, text in documents:
        texts = list(pieces(text, BATCH_BYTES)) if can_cut else [text]
        for number, part in enumerate(texts, start=1):
            yield Part(side, part, number == 1, number == len(texts))


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.text)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
