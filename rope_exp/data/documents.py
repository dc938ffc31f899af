"""Streams of documents, and their assignment to training or validation."""

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rope_exp.config.sections import DataConfig

TRAIN = "train"
VALIDATION = "validation"
SIDES = (TRAIN, VALIDATION)

# Longer documents are encoded in pieces, for constant memory and balanced work.
PIECE_CHARS = 1 << 16
# The byte-level pre-tokenizer always cuts here.
CUT = re.compile(r"(?<=\S)(?=[ \n])")


@dataclass(frozen=True)
class Corpus:
    """Streams of documents.

    Attributes:
        data: the config that named the corpus.
        splits: "train", and "validation" if the corpus has its own; `read` takes one of the values.
        read: yields the documents of a split, starting at the first one on each call.
        text_bytes: approximate bytes of text in all splits; 0 if unknown.
        facts: further entries of the record; complete once all documents have been read.
    """

    data: DataConfig
    splits: Mapping[str, Any]
    read: Callable[[Any], Iterable[str]]
    text_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def documents(self, split: str) -> Generator[tuple[str, str]]:
        """Yield (side, text) of each non-empty document of a split.

        If the corpus has no validation split of its own, a hash of the text decides the side, so
        equal documents are never on both sides.
        """
        is_split = VALIDATION in self.splits

        for text in filter(None, self.read(self.splits[split])):
            if is_split or not is_held_out(text, self.data.holdout_fraction):
                yield split, text
            else:
                yield VALIDATION, text

    def train_texts(self) -> Iterator[str]:
        """Yield only the training documents, to train a tokenizer."""
        return (text for side, text in self.documents(TRAIN) if side == TRAIN)


def is_held_out(text: str, fraction: float) -> bool:
    """Return whether a document is held out: its hash, scaled to [0, 1), is below `fraction`."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text where the byte-level pre-tokenizer also cuts it.

    The pieces then encode to the same ids as the whole text. In a token of the pre-tokenizer's
    pattern (GPT-2's), a space or newline follows only whitespace. So each piece begins with the
    first space or newline that follows other text after `limit` characters.
    """
    start = 0
    while (found := CUT.search(text, start + limit)) is not None:
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]
