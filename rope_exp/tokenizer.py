"""Tokenizers (bytes, BPE or pretrained), all stored as a file of the `tokenizers` library.

Every document is encoded as plain text, without special tokens. The end-of-text id follows each
document; not even the text "<|endoftext|>" inside a document gives it.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rope_exp.corpora import explaining, newest_commit, pieces
from rope_exp.errors import ConfigError, DataError, first_line
from rope_exp.files import check_regular, files_sha256
from rope_exp.sections import TokenizerConfig, is_commit

END_OF_TEXT = "<|endoftext|>"

# The files of a tokenizer on the hub or in a folder.
TOKENIZER_SUFFIXES = (".json", ".txt", ".model", ".tiktoken", ".jinja")


def build_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> tuple[Tokenizer, int]:
    """Make the tokenizer of a config.

    Args:
        texts: the training documents; bpe reads the first tokenizer.train_bytes bytes, the other
            kinds none.
    Returns:
        The tokenizer, and the id that ends a document.
    Raises:
        ConfigError: see each kind.
        DataError: a pretrained one cannot be fetched.
    """
    if config.kind == "pretrained":
        return pretrained_tokenizer(config)
    tokenizer = train_bpe(config, texts) if config.kind == "bpe" else byte_tokenizer()
    return tokenizer, tokenizer.get_vocab()[END_OF_TEXT]


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a tokenizer.json, set to encode any text as plain text.

    The file does not store this setting.

    Raises:
        DataError: it is no tokenizer.
    """
    try:
        check_regular(Path(path))
        tokenizer = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # The library raises a plain Exception, or a panic, which is no Exception.
        raise DataError(f"{path} cannot be read as a tokenizer: {first_line(error)}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """Make the tokenizer whose ids are the bytes of UTF-8; 256 ends a text.

    Byte-level BPE writes a printable byte as its own character, and the others as characters past
    all bytes, in order.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    stand_ins = map(chr, itertools.count(256))
    symbols = [chr(byte) if chr(byte) in alphabet else next(stand_ins) for byte in range(256)]
    vocabulary = {symbol: byte for byte, symbol in enumerate(symbols)}
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def train_bpe(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a byte-level BPE from the first tokenizer.train_bytes bytes of `texts`.

    The document that reaches this number is read to its end.

    Raises:
        ConfigError: the text has too few different pairs for tokenizer.vocab_size tokens.
    """
    size = config.vocab_size or 0
    num_bytes = config.train_bytes or 0
    # Every merge needs a pair of neighbours, and the trainer reserves memory for all.
    if size > num_bytes + 257:
        reason = f"cannot be reached with tokenizer.train_bytes={num_bytes}"
        raise ConfigError("tokenizer.vocab_size", size, reason)

    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_limited(texts, num_bytes), trainer)

    reached = tokenizer.get_vocab_size()
    if reached < size:
        reason = f"the corpus yields only {reached} tokens"
        hint = "choose at most that many, a larger corpus, or tokenizer=bytes"
        raise ConfigError("tokenizer.vocab_size", size, f"{reason}; {hint}")
    return tokenizer


def pretrained_tokenizer(config: TokenizerConfig) -> tuple[Tokenizer, int]:
    """Read a transformers tokenizer from a folder or the hub, set to encode plain text.

    transformers imports torch.

    Raises:
        ConfigError: tokenizer.path holds no usable tokenizer.
        DataError: the hub did not answer.
    """
    from transformers import AutoTokenizer

    folder = Path(str(config.path)).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        # transformers itself skips a file that it cannot fetch, and would build another tokenizer.
        patterns = [f"*{suffix}" for suffix in TOKENIZER_SUFFIXES]
        with explaining("tokenizer.path", config.path, from_hub=True):
            folder = Path(
                snapshot_download(
                    str(config.path), revision=config.revision, allow_patterns=patterns
                )
            )
    try:
        pretrained = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer = Tokenizer.from_str(pretrained.backend_tokenizer.to_str())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # As in `load_tokenizer`: a panic is no Exception.
        raise _unusable(config, f"holds no fast tokenizer: {first_line(error)}") from None
    if pretrained.eos_token_id is None:
        raise _unusable(config, "has no end-of-text token, which must end each document")

    # The tokenizer then encodes plain text, which the model was trained on.
    tokenizer.encode_special_tokens = True
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        # Dropout draws other tokens each time, and data_sha256 with them.
        tokenizer.model.dropout = None

    for id_, token in tokenizer.get_added_tokens_decoder().items():
        if token.special and id_ in tokenizer.encode(token.content, add_special_tokens=False).ids:
            text = repr(token.content)
            raise _unusable(config, f"reads the text {text} as a special token, even in documents")
    return tokenizer, pretrained.eos_token_id


def pin_tokenizer(config: TokenizerConfig) -> TokenizerConfig:
    """Return the config with the commit that tokenizer.revision names now, if it is on the hub.

    Raises:
        ConfigError: there is no such tokenizer or revision.
        DataError: the hub did not answer.
    """
    is_here = config.path is None or Path(config.path).expanduser().is_dir()
    if is_here or is_commit(config.revision):
        return config

    with explaining("tokenizer.path", config.path, from_hub=True):
        return replace(config, revision=newest_commit(str(config.path), config.revision, "model"))


def vocab_size(tokenizer: Tokenizer) -> int:
    """Return one more than the largest id: a pretrained vocabulary may have holes."""
    return max(tokenizer.get_vocab().values()) + 1


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text, computed on all cores (unless TOKENIZERS_PARALLELISM=false)."""
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def tokenizer_fingerprint(config: TokenizerConfig) -> dict[str, object]:
    """Return all that tokens depend on: the config without its name, and a local folder's files."""
    values: dict[str, object] = {
        "kind": config.kind,
        "vocab_size": config.vocab_size,
        "train_bytes": config.train_bytes,
    }
    if config.path is None:
        return values

    folder = Path(config.path).expanduser()
    if not folder.is_dir():
        return values | {"path": config.path, "revision": config.revision}

    paths = [path for path in sorted(folder.iterdir()) if path.suffix in TOKENIZER_SUFFIXES]
    files = {path.name: path for path in paths if path.is_file()}
    return values | {"files_sha256": files_sha256(files)}


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


def _limited(texts: Iterable[str], num_bytes: int) -> Iterator[str]:
    """Yield pieces of the texts until `num_bytes` are reached; the trainer buffers 256 of them."""
    for text in texts:
        for piece in pieces(text):
            yield piece
            num_bytes -= len(piece.encode())
        if num_bytes <= 0:
            return


def _unusable(config: TokenizerConfig, reason: str) -> ConfigError:
    return ConfigError("tokenizer.path", config.path, reason)
