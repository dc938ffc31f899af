"""Streams of documents, and the limits that hold for every corpus, whatever its format.

`datasets` and pyarrow are imported only when a corpus is really read, and without torch.
"""

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.system.errors import ConfigError, show

TRAIN = "train"
VALIDATION = "validation"
SIDES = (TRAIN, VALIDATION)

# A longer document is encoded in pieces, for flat memory and even work.
PIECE_CHARS = 1 << 16
# Where the byte-level pre-tokenizer always cuts.
CUT = re.compile(r"(?<=\S)(?=[ \n])")

# A document is held in memory, and one of so many characters is a hundred books.
MAX_DOCUMENT = 256 << 20

# What stands between two spaces is encoded at once, in some 140 bytes of memory a character.
MAX_WORD = 16 << 20

# A bomb is small and unpacks to what fills memory or disk. Text packs 2 to 10 times, copies of
# one page some 50 times, and zeros 1000 times and more. What stays below HARMLESS_BYTES does no
# harm, however it was packed.
MAX_EXPANSION = 200
HARMLESS_BYTES = 64 << 20


@dataclass(frozen=True)
class Corpus:
    """Streams of documents.

    Attributes:
        data: the config that named the corpus.
        splits: "train", and "validation" where the corpus has its own: what `read` is given.
        read: yields the documents of a split, each time from the first one on.
        text_bytes: about how many bytes of text all splits hold; 0 if unknown.
        facts: what the record says of the corpus; complete once all has been read.
    """

    data: DataConfig
    splits: Mapping[str, Any]
    read: Callable[[Any], Iterable[str]]
    text_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    def documents(self, split: str) -> Generator[tuple[str, str]]:
        """Yield (side, text) of each document of a split that is not empty.

        Where the corpus has no validation split of its own, a hash of the text says the side, so
        that equal documents never stand on both.

        Raises:
            ConfigError: a document is too long to be held and encoded.
        """
        is_split = VALIDATION in self.splits

        for text in self.read(self.splits[split]):
            if not text:
                continue
            _check_document(text, self.data)

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

    The pieces then encode to what the whole does. The pre-tokenizer's pattern (GPT-2's) has no
    token in which a space or newline follows anything but space, so each piece begins with the
    first space or newline that follows other text after `limit` characters.
    """
    start = 0
    while (found := CUT.search(text, start + limit)) is not None:
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def check_length(path: Path | str | None, num_chars: int) -> None:
    """Refuse a document, or a line that is held to see where one ends, of too many characters."""
    if num_chars > MAX_DOCUMENT:
        raise path_error(
            path,
            f"holds a document of {num_chars:,} characters or more; cut it into shorter ones "
            "(data.sample_by=line where it is plain text)",
        )


def check_expansion(path: Path, size: int, num_bytes: int) -> None:
    """Refuse a file of `size` bytes that unpacks, or claims to unpack, to far more of them."""
    if num_bytes > max(HARMLESS_BYTES, MAX_EXPANSION * size):
        reason = f"unpacks to {num_bytes:,} bytes or more, over {MAX_EXPANSION} times its size"
        raise path_error(path, reason)


def choose_sides(data: DataConfig, splits: Mapping[str, Any]) -> dict[str, Any]:
    """Choose what to train on, and what to validate on where the corpus has it.

    Other splits, such as test, are never read.
    """
    if TRAIN not in splits:
        names = ", ".join(sorted(splits))
        raise path_error(data.path, f"has no split named train; it has {names}")

    sides = {TRAIN: splits[TRAIN]}
    if data.validation_split in splits:
        sides[VALIDATION] = splits[str(data.validation_split)]
    return sides


def column_texts(tables: Iterable[Any], data: DataConfig) -> Iterator[str]:
    """Yield the text column of Arrow tables or batches; rows without text are left out.

    Raises:
        ConfigError: there is no such column, or it holds no text.
    """
    import pyarrow

    for table in tables:
        check_column(data, table.schema.names)
        column = table.column(data.text_column)
        if column.type not in (pyarrow.string(), pyarrow.large_string(), pyarrow.null()):
            raise no_text(data, column.type)
        yield from filter(None, column.to_pylist())


def check_column(data: DataConfig, names: list[str]) -> None:
    """Refuse a data.text_column that is none of the columns `names`."""
    if data.text_column not in names:
        found = show(", ".join(names))
        raise ConfigError("data.text_column", data.text_column, f"is no column; there are {found}")


def path_error(path: Path | str | None, allowed: str) -> ConfigError:
    """Return the error of data.path, or of a file below it."""
    return ConfigError("data.path", str(path), allowed)


def no_text(data: DataConfig, kind: object) -> ConfigError:
    """Return the error of a text column whose values are of another kind."""
    return ConfigError("data.text_column", data.text_column, f"holds {kind}, not text")


def load_datasets() -> Any:
    """Import `datasets` such that it neither loads torch nor draws bars and logs of its own."""
    import datasets

    # Or the first batch would import torch.
    datasets.config.TORCH_AVAILABLE = False
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


def _check_document(text: str, data: DataConfig) -> None:
    check_length(data.path, len(text))
    if len(text) <= MAX_WORD:
        return

    longest = max(map(len, pieces(text)))
    if longest > MAX_WORD:
        reason = f"holds {longest:,} characters on end without a space or newline"
        raise path_error(data.path, reason)
