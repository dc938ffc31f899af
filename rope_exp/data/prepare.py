"""Preparation of a corpus: its documents are tokenised once, into files that are then only read.

    <cache>/<key>/tokenizer.json  train.bin  validation.bin  meta.json

The end-of-text id follows each document's ids. Ids are 16 bits wide if the vocabulary allows. The
key hashes everything that the tokens depend on. A folder is made under a hidden name, under a lock,
and renamed once it is complete and on the disk. So `<key>` is always complete, and an interrupted
preparation leaves nothing that is read.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rope_exp.config.schema import keys_with
from rope_exp.config.sections import DataConfig, TokenizerConfig, is_commit
from rope_exp.data.corpora import (
    explaining,
    files_fingerprint,
    newest_commit,
    open_dataset,
)
from rope_exp.data.documents import SIDES, TRAIN, VALIDATION, Corpus
from rope_exp.data.encoding import write_tokens
from rope_exp.data.meta import (
    FORMAT,
    TOKENIZER,
    Prepared,
    open_prepared,
    read_meta,
    write_meta,
)
from rope_exp.data.stdlib import library_files, open_library
from rope_exp.data.tokenizer import (
    build_tokenizer,
    pin_tokenizer,
    tokenizer_fingerprint,
    vocab_size,
)
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError, DataError
from rope_exp.system.files import (
    explaining_full_disk,
    files_sha256,
    free_bytes,
    is_full,
    json_sha256,
    lock,
    make_folders,
    sync_folder,
    try_lock,
    write_atomically,
)

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
        with _lock(folder):
            if not folder.exists():
                _make(data, tokenizer, folder, seq_len)

    prepared = open_prepared(folder, data)
    _check_length(prepared.corpus["tokens"], seq_len)
    return prepared


def num_prepared_tokens(data: DataConfig, tokenizer: TokenizerConfig) -> int | None:
    """Return the number of tokens of one epoch; None if the corpus is not prepared, or not here.

    The network is not used: data and tokenizers of the hub must be given by commit.
    """
    with suppress(ConfigError, DataError):
        return int(read_meta(_folder(data, tokenizer))["corpus"]["tokens"][TRAIN])
    return None


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

    with explaining(data):
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


def open_corpus(data: DataConfig) -> Corpus:
    """Open the streams of a config.

    Raises:
        ConfigError: data.path, data.text_column or data.validation_split cannot be used.
        DataError: the hub did not answer.
    """
    if data.kind == "stdlib":
        return open_library(data)
    if data.validation_split == TRAIN:
        allowed = "is trained on; name another split, or null"
        raise ConfigError("data.validation_split", TRAIN, allowed)
    return open_dataset(data)


def _folder(data: DataConfig, tokenizer: TokenizerConfig) -> Path:
    """Return the folder of a config's prepared corpus, which may not exist yet."""
    values = {
        "format": FORMAT,
        "corpus": corpus_fingerprint(data),
        "data": {name: getattr(data, name) for name in keys_with("of_tokens", DataConfig)},
        "tokenizer": tokenizer_fingerprint(tokenizer),
    }
    cache = data.cache_dir or os.environ.get("ROPE_EXP_CACHE") or "~/.cache/rope_exp"
    return Path(cache).expanduser().absolute() / json_sha256(values)[:16]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of one preparation; log a line before waiting for it."""
    cache = folder.parent
    path = cache / LOCKS / folder.name
    try:
        make_folders(path.parent)
        held = try_lock(path)
        if held is None:
            log(f"data: another process prepares {folder}; waiting for it")
            held = lock(path)
    except OSError as error:
        if is_full(error):
            raise
        reason = f"cannot be written: {error.strerror}"
        raise ConfigError("data.cache_dir", str(cache), reason) from None

    try:
        yield
    finally:
        os.close(held)


def _make(data: DataConfig, config: TokenizerConfig, folder: Path, seq_len: int) -> None:
    """Prepare into a hidden sibling of `folder`, then rename it. The caller holds the lock."""
    cache = folder.parent
    temporary = cache / f".{folder.name}"
    # An interrupted preparation may have left it.
    shutil.rmtree(temporary, ignore_errors=True)

    corpus = open_corpus(data)
    # The size of the tokens is unknown; if the disk fills up, it exceeds the free space.
    with explaining_full_disk(cache, free_bytes(cache), f"preparing data={data.name}"):
        try:
            temporary.mkdir()
            _write(temporary, corpus, config, seq_len)
            if _folder(data, config) != folder:
                raise DataError(
                    f"data.path={data.path}: its files changed while they were read; try again"
                )
            temporary.rename(folder)
            sync_folder(cache)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, corpus: Corpus, config: TokenizerConfig, seq_len: int) -> None:
    """Write the files of a prepared corpus."""
    data = corpus.data
    if config.kind == "bpe":
        _check_held_out(corpus)
        log("data: training the tokenizer")
    tokenizer, end_id = build_tokenizer(config, corpus.train_texts())
    write_atomically(folder / TOKENIZER, tokenizer.to_str())

    with ExitStack() as stack:
        files = {side: stack.enter_context((folder / f"{side}.bin").open("wb")) for side in SIDES}
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
    write_meta(folder, vocab_size(tokenizer), facts)


def _check_held_out(corpus: Corpus) -> None:
    """Refuse a share that holds out no document, or all, before a tokenizer is trained."""
    if VALIDATION in corpus.splits:
        return

    num_documents = dict.fromkeys(SIDES, 0)
    for side, _ in corpus.documents(TRAIN):
        num_documents[side] += 1
        if all(num_documents.values()):
            return
    _check_sides(corpus.data, num_documents)


def _check_sides(data: DataConfig, num_documents: Mapping[str, int]) -> None:
    """Refuse a corpus without text, or without a document on one of the sides."""
    total = sum(num_documents.values())
    if total == 0:
        hint = f"of a table, the column data.text_column={data.text_column} is read"
        raise ConfigError("data.path", data.path, f"holds no text; {hint}")

    for side in SIDES:
        if num_documents[side] == 0:
            raise ConfigError(
                "data.holdout_fraction",
                data.holdout_fraction,
                f"leaves no document for {side} of the corpus's {total}; choose one that does, or "
                "more documents (of plain text, data.sample_by=line makes each line one)",
            )


def _check_length(num_tokens: Mapping[str, int], seq_len: int) -> None:
    for side in SIDES:
        if num_tokens[side] < seq_len + 1:
            raise ConfigError(
                "train.seq_len",
                seq_len,
                f"a window needs {seq_len + 1} tokens "
                f"and the corpus has {num_tokens[side]} for {side}",
            )
