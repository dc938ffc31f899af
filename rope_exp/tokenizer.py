"""Tokenizers (bytes, BPE or pretrained) of plain text: no text of a document is a special token."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rope_exp.errors import ConfigError, DataError, first_line, log
from rope_exp.identity import chosen
from rope_exp.sections import TokenizerConfig

END_OF_TEXT = "<|endoftext|>"
# Longer texts are encoded in pieces, since encoding takes about 100 bytes of memory a token.
PIECE_CHARS = 1 << 16
# The byte-level pre-tokenizer always cuts here: in a token of its pattern (GPT-2's), a space or
# newline follows only whitespace.
CUT = re.compile(r"(?<=\S)(?=[ \n])")


def build_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> tuple[Tokenizer, int]:
    """Make the tokenizer of a config, bpe from these texts; return also the id that ends a text."""
    if config.kind == "pretrained":
        hub = chosen("corpora", "hub", "tokenizer.kind")
        pretrained: tuple[Tokenizer, int] = hub.pretrained_tokenizer(config)
        return pretrained
    tokenizer = train_bpe(config, texts) if config.kind == "bpe" else byte_tokenizer()
    return tokenizer, tokenizer.get_vocab()[END_OF_TEXT]


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a tokenizer.json, set to encode any text as plain text, which the file does not say."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise DataError(f"{path} cannot be read as a tokenizer: {first_line(error)}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


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

    def limited() -> Iterator[str]:
        left = config.train_bytes or 0
        for text in texts:
            for piece in pieces(text):
                yield piece
                left -= len(piece.encode())
            if left <= 0:
                return

    log("data: training the tokenizer")
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(limited(), trainer)
    reached = tokenizer.get_vocab_size()
    if reached < size:
        reason = f"the corpus yields only {reached} tokens; choose fewer, or tokenizer=bytes"
        raise ConfigError("tokenizer.vocab_size", size, reason)
    return tokenizer


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text after `limit` characters where the byte-level pre-tokenizer also cuts it."""
    start = 0
    while (cut := CUT.search(text, start + limit)) is not None:
        yield text[start : cut.start()]
        start = cut.start()
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
