"""Streams of documents, and the side of the split that each belongs to."""

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rope_exp.config.sections import DataConfig

TRAIN = "train"
VALIDATION = "validation"
SIDES = (TRAIN, VALIDATION)

# A longer document is encoded in pieces, for flat memory and even work.
PIECE_CHARS = 1 << 16
# The byte-level pre-tokenizer always cuts here.
CUT = re.compile(r"(?<=\S)(?=[ \n])")


@dataclass(frozen=True)
class Corpus:
    """Streams of documents.

    Attributes:
        data: the config that named the corpus.
        splits: "train", and "validation" where the corpus has its own; `read` takes one of them.
        read: yields the documents of a split, each time from the first one on.
        text_bytes: about how many bytes of text all splits hold; 0 if unknown.
        facts: further entries of the record; complete once all has been read.
    """

    data: DataConfig
    splits: Mapping[str, Any]
    read: Callable[[Any], Iterable[str]]
    text_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def documents(self, split: str) -> Generator[tuple[str, str]]:
        """Yield (side, text) of each document of a split that is not empty.

        Where the corpus has no validation split of its own, a hash of the text decides the side,
        so equal documents are never on both.
        """
        is_split = VALIDATION in self.splits

        for text in filter(None, self.read(self.splits[split])):
            if is_split or not is_held_out(text, self.data.holdout_fraction):
                yield split, text
            else:
                yield VALIDATION, text

    def train_texts(self) -> Iterator[str]:
        """Yield the training documents alone, for a tokenizer to learn from."""
        return (text for side, text in self.documents(TRAIN) if side == TRAIN)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to validation: its hash, as a share of all, is below that."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64


def pieces(text: str, limit: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a text where the byte-level pre-tokenizer cuts anyway.

    The pieces then encode to the ids of the whole. The pre-tokenizer's pattern (GPT-2's) has no
    token in which a space or newline follows anything but space, so each piece begins with the
    first space or newline that follows other text after `limit` characters.
    """
    start = 0
    while (found := CUT.search(text, start + limit)) is not None:
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]
