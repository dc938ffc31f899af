"""Streams of documents, and how they come out of Arrow tables.

`datasets` and pyarrow are imported only when a corpus is really read, and without torch.
"""

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.system.errors import ConfigError

TRAIN, VALIDATION = "train", "validation"
ROWS = 64  # of one read; documents can be long


@dataclass(frozen=True)
class Corpus:
    """Streams of documents.

    Attributes:
        splits: "train", and "validation" where the corpus has its own; each call reads the stream anew.
        holdout_fraction: the share of train documents that are held out otherwise.
        text_bytes: about how many bytes of text all splits hold; None if unknown.
        facts: what the record says of the corpus; complete once all has been read.
    """

    splits: Mapping[str, Callable[[], Iterator[str]]]
    holdout_fraction: float
    text_bytes: int | None
    facts: dict[str, Any]

    def documents(self, split: str) -> Generator[tuple[str, str], None, None]:
        """(side, text) of each document of a split that is not empty; side is "train" or "validation"."""
        own = VALIDATION in self.splits
        for text in filter(None, self.splits[split]()):
            yield (
                (VALIDATION if not own and is_held_out(text, self.holdout_fraction) else split),
                text,
            )

    def train_texts(self) -> Iterator[str]:
        """The training documents alone, for a tokenizer to learn from."""
        return (text for side, text in self.documents(TRAIN) if side == TRAIN)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to validation: a hash of its text, as a number in [0, 1), is below `fraction`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) < fraction * 2**64


def choose_sides(data: DataConfig, splits: Mapping[str, Any]) -> dict[str, Any]:
    """What to train on, and what to validate on where the corpus has it. Other splits (test) are never read."""
    if TRAIN not in splits:
        raise ConfigError(
            "data.path", data.path, f"has no split named train; it has {', '.join(sorted(splits))}"
        )
    sides = {TRAIN: splits[TRAIN]}
    if data.validation_split is not None and data.validation_split in splits:
        sides[VALIDATION] = splits[data.validation_split]
    return sides


def load_datasets() -> Any:
    """The library, imported such that it neither loads torch nor draws bars and logs of its own."""
    before = os.environ.get("USE_TORCH")
    os.environ["USE_TORCH"] = "0"  # read once, at import: otherwise the first batch imports torch
    try:
        import datasets
    finally:
        if before is None:
            del os.environ["USE_TORCH"]
        else:
            os.environ["USE_TORCH"] = before
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


def stream_texts(stream: Any, data: DataConfig) -> Iterator[str]:
    """The text column of a stream of `datasets`, as `texts` gives it."""
    # A column of mixed types is declared "Json" and arrives as strings of JSON, which are no documents.
    kind = (stream.features or {}).get(data.text_column)
    if "Json" in str(kind):
        raise ConfigError("data.text_column", data.text_column, f"holds {kind}, not text")
    return texts(stream.with_format("arrow").iter(batch_size=ROWS), data)


def texts(tables: Iterable[Any], data: DataConfig) -> Iterator[str]:
    """The text column of Arrow tables or batches; rows without text are left out.

    Raises:
        ConfigError: there is no such column, or it holds no text.
    """
    import pyarrow

    for table in tables:
        check_column(data, table.schema.names)
        column = table.column(data.text_column)
        if column.type not in (pyarrow.string(), pyarrow.large_string(), pyarrow.null()):
            raise ConfigError(
                "data.text_column", data.text_column, f"holds {column.type}, not text"
            )
        yield from filter(None, column.to_pylist())


def check_column(data: DataConfig, names: list[str]) -> None:
    """Refuse a data.text_column that is none of the columns `names`."""
    if data.text_column not in names:
        raise ConfigError(
            "data.text_column", data.text_column, f"is no column; there are {', '.join(names)}"
        )
