"""Preparation of a corpus, before the ranks of a run start: its documents and tokenizer.

The folder that is written is opened by `corpus.open_prepared`.
"""

import itertools
import os
import platform
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rope_exp import hub
from rope_exp.config import task_of
from rope_exp.corpus import (
    META,
    SIDES,
    TOKENIZER,
    TRAIN,
    VALIDATION,
    Corpus,
    DataSet,
    Prepared,
    corpus_leaf,
    data_sha256,
    open_prepared,
    token_dtype,
)
from rope_exp.errors import ConfigError, DataError, log
from rope_exp.files import (
    files_sha256,
    is_full,
    json_sha256,
    lock,
    make_folders,
    new_folder,
    try_lock,
    write_atomically,
    write_json,
)
from rope_exp.identity import metadata_of
from rope_exp.progress import Progress, run_aside
from rope_exp.sections import DataConfig, TokenizerConfig
from rope_exp.tasks._rows import open_task

FORMAT = 3  # of the folder
BATCH_CHARS = 1 << 20  # encoded at once
END_OF_TEXT = "<|endoftext|>"
# Longer texts are encoded in pieces, since encoding takes about 100 bytes of memory a token.
PIECE_CHARS = 1 << 16
# The byte-level pre-tokenizer always cuts here: in a token of its pattern (GPT-2's), a space or
# newline follows only whitespace.
CUT = re.compile(r"(?<=\S)(?=[ \n])")
ANYWHERE = re.compile("(?s)(?=.)")
# The trainer of merges takes time with the square of a word's length, so it gets longer words in
# pieces. No word of a corpus on record has even 200 characters; a line of base64 or FASTA is one.
WORD_BYTES = 1000
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def stdlib_files() -> dict[str, Path]:
    """Return the modules of Python's standard library by name, in the order of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        # Python's build writes these.
        is_built = parts[0].startswith("config-") or path.name.startswith("_sysconfigdata")
        if not is_built and LEFT_OUT.isdisjoint(parts):
            files["/".join(parts)] = path
    return files


def open_stdlib(data: DataConfig) -> Corpus:
    """Open the stdlib corpus, with one document per module; other kinds are files of corpora/."""
    source_info: dict[str, Any] = {"python": platform.python_version()}

    def read(paths: Iterable[Path]) -> Iterator[str]:
        source_info["files_not_decoded"] = 0
        for path in paths:
            try:
                with tokenize.open(path) as file:
                    text = file.read()
            except (SyntaxError, UnicodeDecodeError):
                # The module declares a wrong encoding, or declares none and is not UTF-8.
                source_info["files_not_decoded"] += 1
            else:
                yield text

    return Corpus(data, {TRAIN: stdlib_files().values()}, read, source_info)


def fingerprint(data: DataConfig) -> str:
    """Return 64 hexadecimal digits that change with the corpus, without network access."""
    if data.kind == "stdlib":
        return files_sha256(stdlib_files())
    return json_sha256(corpus_leaf(data.kind).state(data))


def open_data(data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int) -> DataSet:
    """Open the data set of a run: rows that are generated, or a corpus, prepared if necessary.

    Args:
        data: the section of the run's config.
        tokenizer: the section of the run's config; rows of a task have a vocabulary of their own.
        seq_len: T, the length of the rows, or one less than the tokens of a window of the corpus.
    Returns:
        The data set; a `Prepared` for a corpus.
    Raises:
        ConfigError, DataError: as for `prepare`.
    """
    if task_of(data) is not None:
        return open_task(data, seq_len)
    return prepare(data, tokenizer, seq_len=seq_len)


def prepare(data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int = 0) -> Prepared:
    """Open the prepared corpus of a config, which is made first if necessary, and verify it.

    Args:
        data: the corpus, its split and its cache.
        tokenizer: trained on the corpus, read, or of bytes, as its kind says.
        seq_len: each side must have at least one window of seq_len + 1 tokens.
    Returns:
        The corpus, whose tokens have been hashed and agree with the record of their preparation.
    Raises:
        ConfigError: as for `prepared_folder`, or the corpus has no whole window on a side.
        DataError: as for `prepared_folder`, or the folder is damaged.
    """
    prepared = open_prepared(prepared_folder(data, tokenizer), data, verifies=True)
    for side, count in prepared.corpus["tokens"].items():
        if count <= seq_len:
            reason = f"a window needs {seq_len + 1} tokens and the corpus has {count} for {side}"
            raise ConfigError("train.seq_len", seq_len, reason)
    return prepared


def prepared_folder(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """Return the folder of a prepared corpus; one of several processes makes it if necessary.

    Raises:
        ConfigError: the corpus or its tokenizer cannot be read, or the cache cannot be written.
        DataError: the hub does not answer, or files changed while they were read.
    """
    data, tokenizer = hub.pin(data, tokenizer)
    folder = _folder(data, tokenizer)
    if folder.exists():
        return folder

    path = folder.parent / "locks" / folder.name
    try:
        make_folders(path.parent)
        descriptor = try_lock(path)
        if descriptor is None:
            log(f"data: another process prepares {folder}; waiting for it")
            descriptor = lock(path)
    except OSError as error:
        if is_full(error):
            raise
        reason = f"cannot be written: {error.strerror}"
        raise ConfigError("data.cache_dir", str(folder.parent), reason) from None
    with os.fdopen(descriptor):
        if not folder.exists():
            _make(data, tokenizer, folder)
    return folder


def _folder(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """Return the folder of a prepared corpus, named by a hash of what determines its tokens."""
    hashed = {name: getattr(tokenizer, name) for name in ("kind", "vocab_size", "train_bytes")}
    if tokenizer.kind == "pretrained":
        hashed |= hub.tokenizer_state(tokenizer)
    values = {
        "format": FORMAT,
        "corpus": fingerprint(data),
        "data": {name: getattr(data, name) for name in metadata_of(DataConfig, "of_tokens")},
        "tokenizer": hashed,
    }
    cache = data.cache_dir or os.environ.get("ROPE_EXP_CACHE") or "~/.cache/rope_exp"
    try:
        folder = Path(cache).expanduser().absolute()
    except RuntimeError:
        # Neither HOME nor the system's list of users names a home.
        reason = "there is no home folder here; set ROPE_EXP_CACHE to another folder"
        raise ConfigError("data.cache_dir", cache, reason) from None
    return folder / json_sha256(values)[:16]


def _make(data: DataConfig, tokenizer_config: TokenizerConfig, folder: Path) -> None:
    """Prepare the corpus of a config into its folder."""
    if data.kind == "stdlib":
        corpus = open_stdlib(data)
    else:
        corpus = corpus_leaf(data.kind).open_corpus(data)
    # The size of the tokens is unknown.
    with new_folder(folder, None, f"preparing data={data.name}") as temporary:
        _write(temporary, corpus, tokenizer_config)
        if _folder(data, tokenizer_config) != folder:
            reason = "its files changed while they were read; try again"
            raise DataError(f"data.path={data.path}: {reason}")


def _write(folder: Path, corpus: Corpus, tokenizer_config: TokenizerConfig) -> None:
    """Write the files of a corpus, which must have a document on each side."""
    data = corpus.data
    training_texts = (text for side, text in corpus.documents(TRAIN) if side == TRAIN)
    tokenizer, end_id = build_tokenizer(tokenizer_config, training_texts)
    write_atomically(folder / TOKENIZER, tokenizer.to_str())

    paths = [folder / f"{side}.bin" for side in SIDES]
    with paths[0].open("wb") as train, paths[1].open("wb") as validation:
        files = {TRAIN: train, VALIDATION: validation}
        counts = write_tokens(corpus, tokenizer, end_id, files)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())

    num_documents = counts["documents"]
    total = sum(num_documents.values())
    if total == 0:
        hint = f"of a table, the column data.text_column={data.text_column} is read"
        raise ConfigError("data.path", data.path, f"holds no text; {hint}")
    if tokenizer_config.kind == "pretrained" and sum(counts["tokens"].values()) == total:
        reason = "encodes every document to no token but the one that ends it"
        raise ConfigError("tokenizer.path", tokenizer_config.path, reason)
    for side in SIDES:
        if num_documents[side] == 0:
            reason = f"leaves no document for {side} of the corpus's {total}"
            hint = f"a {'smaller' if side == TRAIN else 'larger'} share or more documents help"
            if data.sample_by in ("document", "paragraph"):
                hint = "of plain text, data.sample_by=line makes each line one"
            raise ConfigError("data.holdout_fraction", data.holdout_fraction, f"{reason}; {hint}")

    meta = {
        "format": FORMAT,
        "vocab_size": vocab_size(tokenizer),
        "data_sha256": data_sha256(folder, token_dtype(vocab_size(tokenizer))),
        "corpus": {
            **corpus.source_info,
            "validation": "its own" if VALIDATION in corpus.splits else "held out",
            "fingerprint": fingerprint(data),
            "tokenizers": version("tokenizers"),
            "end_id": end_id,
            **counts,
        },
    }
    write_json(folder / META, {**meta, "meta_sha256": json_sha256(meta)})


def write_tokens(
    corpus: Corpus, tokenizer: Tokenizer, end_id: int, files: Mapping[str, BinaryIO]
) -> dict[str, dict[str, int]]:
    """Encode every document into the file of its side.

    A split has the name of the side that it fills. It is read until that side is full, with
    data.max_tokens tokens.

    Args:
        corpus: its splits, which are read in their order.
        tokenizer: encodes a text without special tokens.
        end_id: the token after each document.
        files: open for writing, by side; ids have the type of `token_dtype`.
    Returns:
        The number of documents, text_bytes and tokens that were written, each by side.
    Raises:
        ConfigError: the tokenizer cannot encode a text.
    """
    counts = {what: dict.fromkeys(SIDES, 0) for what in ("documents", "text_bytes", "tokens")}
    num_tokens = counts["tokens"]
    limit = corpus.data.max_tokens or sys.maxsize
    dtype = token_dtype(vocab_size(tokenizer))
    progress = Progress("data", corpus.data.max_tokens)

    for split in corpus.splits:
        for batch in _batches(corpus.documents(split), tokenizer):
            texts = [text for _, text, *_ in batch]
            # A document of one long word takes minutes.
            encode = partial(hub.encode, tokenizer, texts)
            encodings = run_aside(encode, lambda: "data: encoding a long text")
            for (side, text, is_first, is_last), encoding in zip(batch, encodings, strict=True):
                ids = [*encoding.ids, end_id] if is_last else encoding.ids
                kept = ids[: limit - num_tokens[side]]
                if kept:
                    files[side].write(np.array(kept, dtype).tobytes())
                    counts["documents"][side] += is_first
                    # A piece that is cut counts as many bytes as its share of tokens.
                    counts["text_bytes"][side] += len(text.encode()) * len(kept) // len(ids)
                    num_tokens[side] += len(kept)
                if num_tokens[split] == limit:
                    break

            num_documents = sum(counts["documents"].values())
            line = f"{num_documents:,} documents, {sum(num_tokens.values()):,} tokens"
            progress.show(num_tokens[TRAIN], line)
            if num_tokens[split] == limit:
                break
    return counts


def _batches(
    documents: Iterable[tuple[str, str]], tokenizer: Tokenizer
) -> Iterator[list[tuple[str, str, bool, bool]]]:
    """Group pieces of documents, each with its side, and whether it begins and ends a document."""
    can_cut = cuts_at_spaces(tokenizer)
    # Without merges, each byte is a token wherever a text is cut.
    has_merges = tokenizer.get_vocab() != byte_tokenizer().get_vocab()
    cut = CUT if has_merges else ANYWHERE
    batch: list[tuple[str, str, bool, bool]] = []
    num_chars = 0
    for side, text in documents:
        parts = list(pieces(text, cut=cut)) if can_cut else [text]
        for number, part in enumerate(parts, 1):
            batch.append((side, part, number == 1, number == len(parts)))
            num_chars += len(part)
            if num_chars >= BATCH_CHARS:
                yield batch
                batch = []
                num_chars = 0
    if batch:
        yield batch


# -- tokenizers: no text of a document is a special token ------------------------------------------


def build_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> tuple[Tokenizer, int]:
    """Make the tokenizer of a config, bpe from these texts; return also the id that ends a text."""
    if config.kind == "pretrained":
        return hub.pretrained_tokenizer(config)
    tokenizer = train_bpe(config, texts) if config.kind == "bpe" else byte_tokenizer()
    return tokenizer, tokenizer.get_vocab()[END_OF_TEXT]


def byte_tokenizer() -> Tokenizer:
    """Make the tokenizer whose ids are the bytes of UTF-8; 256 ends a text."""
    # Byte-level BPE writes a printable byte as its own character, the others as those past 255.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    stand_ins = map(chr, itertools.count(256))
    symbols = [chr(byte) if chr(byte) in alphabet else next(stand_ins) for byte in range(256)]
    vocabulary = {symbol: byte for byte, symbol in enumerate(symbols)}
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def train_bpe(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a byte-level BPE from the texts that begin in the first tokenizer.train_bytes bytes."""
    size = config.vocab_size or 0
    limit = config.train_bytes or 0
    num_bytes = 0

    def limited() -> Iterator[str]:
        nonlocal num_bytes
        for text in texts:
            for piece in pieces(text):
                yield piece
                num_bytes += len(piece.encode())
            if num_bytes >= limit:
                return

    log("data: training the tokenizer")
    tokenizer = _byte_level(models.BPE())
    split_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # For the training alone: words past a length are cut.
    cut_words = pre_tokenizers.FixedLength(WORD_BYTES)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split_words, cut_words])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    run_aside(
        lambda: tokenizer.train_from_iterator(limited(), trainer),
        lambda: f"data: training the tokenizer, {num_bytes:,} bytes read",
    )
    tokenizer.pre_tokenizer = split_words
    reached = tokenizer.get_vocab_size()
    if reached < size:
        reason = f"the corpus yields only {reached} tokens; choose fewer, or tokenizer=bytes"
        raise ConfigError("tokenizer.vocab_size", size, reason)
    return tokenizer


def pieces(text: str, limit: int = PIECE_CHARS, cut: re.Pattern[str] = CUT) -> Iterator[str]:
    """Yield a text in pieces, so that no encoding takes much memory.

    Args:
        text: one document; the pieces together are the same text.
        limit: the characters after which a piece ends, at the next place that allows it.
        cut: matches the empty text where a cut is allowed. The default is where the byte-level
            pre-tokenizer also cuts, so pieces have the tokens of the whole text.
    """
    start = 0
    place = cut.search(text, limit)
    while place is not None:
        yield text[start : place.start()]
        start = place.start()
        place = cut.search(text, start + limit)
    yield text[start:]


def cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Return whether this tokenizer cuts a text wherever `pieces` does."""
    first = tokenizer.pre_tokenizer
    return (
        isinstance(first, pre_tokenizers.ByteLevel)
        and first.use_regex
        and not first.add_prefix_space
        and tokenizer.normalizer is None
        and all(token.special for token in tokenizer.get_added_tokens_decoder().values())
    )


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.encode_special_tokens = True
    return tokenizer


def vocab_size(tokenizer: Tokenizer) -> int:
    """Return one more than the largest id: a pretrained vocabulary may have holes."""
    return max(tokenizer.get_vocab().values()) + 1
