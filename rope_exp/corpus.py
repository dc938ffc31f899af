"""The data of a run: a data set, a prepared corpus, and the documents that it is made from."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rope_exp.errors import DataError, RunFolderError
from rope_exp.files import json_sha256, read_json
from rope_exp.identity import import_choice
from rope_exp.sections import DataConfig

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]

NO_TARGET = -1  # replaces a target where nothing is to be predicted

TRAIN = "train"
VALIDATION = "validation"
# A side is where a document goes, train or validation. A split is a stream of the source.
SIDES = (TRAIN, VALIDATION)
TEST = "test"  # the held-out split of generated data

# In the folder of a prepared corpus, beside a file of token ids for each side.
META = "meta.json"
TOKENIZER = "tokenizer.json"
# data_sha256 is a digest of digests, one for each block of this size of a .bin file.
BLOCK_BYTES = 64 << 10


class Batch(NamedTuple):
    """The rows that a model reads, and their targets: numpy's arrays, or tensors on a device."""

    ids_BT: Any
    target_BP: Any  # the target token at each place, or NO_TARGET; or real numbers, [B, P, O]
    hashed_BS: Any  # the columns of each row that order_sha256 covers; None on a device
    place_BP: Any = None  # of the targets in the row; None: all places, so that P = T
    position_BT: Any = None  # None: 0, 1, 2, ...
    document_BT: Any = None  # the number of each token's document, which limits attention

    def rows(self, part: slice) -> "Batch":
        """Return some of the rows."""
        return Batch(*(None if column is None else column[part] for column in self))

    def split(self, size: int) -> Iterator["Batch"]:
        """Yield micro-batches of `size` rows; the last may have fewer."""
        for start in range(0, len(self.ids_BT), size):
            yield self.rows(slice(start, start + size))

    @property
    def num_targets(self) -> int:
        """The number of tokens to predict, or of places at which real numbers are predicted."""
        if self.target_BP.ndim == 3:
            return math.prod(self.target_BP.shape[:2])
        return int((self.target_BP != NO_TARGET).sum())

    @property
    def model_kwargs(self) -> dict[str, Any]:
        """The decoder's keyword arguments besides ids and targets."""
        names = ("place_BP", "position_BT", "document_BT")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class DataSet:
    """The data of a run: a prepared corpus, or the generated rows of a file of tasks/."""

    vocab_size: int
    data_sha256: str
    corpus: dict[str, Any]  # its entry in the record: source and fingerprint, counts of tokens
    tokenizer_json: str
    num_train_tokens: int | None  # of one epoch; None: the data has no end

    def batch(self, split: str, indices: Iterable[int], seed: int = 0) -> Batch:
        """Return generated rows; a prepared corpus has none.

        Args:
            split: one of the task's splits, such as train or test.
            indices: the numbers of the rows, from 0.
            seed: of the draws; held-out rows always take the default.
        """
        raise NotImplementedError


# -- a prepared corpus -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared(DataSet):
    """A prepared corpus: its folder, and the token ids of each side, mapped into memory.

    The folder has tokenizer.json, the token ids in train.bin and validation.bin, and meta.json with
    their digest, the corpus's source and its counts.
    """

    folder: Path
    tokens: Mapping[str, NDArray[np.unsignedinteger]]


def open_prepared(folder: Path, data: DataConfig, *, verifies: bool) -> Prepared:
    """Open the folder of a prepared corpus, which `prepare` made.

    Args:
        folder: of the corpus; its name is a hash of what determines the tokens.
        data: names the corpus in the record of a run. The same content may have been prepared
            under another name, from another path.
        verifies: hash all tokens; otherwise compare meta.json with its own hash, and the sizes of
            the other files with it.

    Returns:
        The data set, with token ids that are read from the disk as they are used.
    Raises:
        DataError: the folder is gone, or damaged.
    """
    if not folder.exists():
        raise DataError(f"{folder} is gone; the same command prepares the corpus again")
    try:
        meta = _read_meta(folder, verifies=verifies)
        tokenizer_json = (folder / TOKENIZER).read_text(encoding="utf-8")
    except (RunFolderError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{folder} is damaged: {error}; remove it and prepare again") from None

    corpus = {"name": data.name, "kind": data.kind, **meta["corpus"]}
    if "path" in corpus:
        corpus["path"] = data.path
    dtype = token_dtype(meta["vocab_size"])
    # A plain array is sliced faster than a memmap.
    tokens = {}
    for side in SIDES:
        tokens[side] = np.memmap(folder / f"{side}.bin", dtype, "r").view(np.ndarray)
    return Prepared(
        vocab_size=meta["vocab_size"],
        data_sha256=meta["data_sha256"],
        corpus=corpus,
        tokenizer_json=tokenizer_json,
        num_train_tokens=corpus["tokens"][TRAIN],
        folder=folder,
        tokens=tokens,
    )


def _read_meta(folder: Path, *, verifies: bool) -> dict[str, Any]:
    """Return meta.json of a prepared corpus; a RunFolderError says how the folder differs from it.

    `verifies` as for `open_prepared`.
    """
    meta = read_json(folder / META)
    if meta.pop("meta_sha256", None) != json_sha256(meta):
        raise RunFolderError(f"{META} has changed")
    dtype = token_dtype(meta["vocab_size"])
    for side, count in meta["corpus"]["tokens"].items():
        num_bytes = (folder / f"{side}.bin").stat().st_size
        if num_bytes != count * dtype.itemsize:
            raise RunFolderError(f"{side}.bin has {num_bytes:,} bytes for {count:,} tokens")
    if verifies and data_sha256(folder, dtype) != meta["data_sha256"]:
        raise RunFolderError("its files are not those that were prepared")
    return meta


def data_sha256(folder: Path, dtype: np.dtype[np.unsignedinteger]) -> str:
    """Hash the tokenizer, the type of ids, and every token, block by block."""
    tokenizer = hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
    digests = [tokenizer, dtype.name]
    for side in SIDES:
        with (folder / f"{side}.bin").open("rb") as file:
            blocks = iter(functools.partial(file.read, BLOCK_BYTES), b"")
            digests.append("".join(hashlib.sha256(block).hexdigest() for block in blocks))
    return json_sha256(digests)


def token_dtype(num_ids: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of stored ids: the narrowest that holds the vocabulary."""
    return np.dtype("<u2" if num_ids <= 2**16 else "<u4")


# -- the documents of a corpus ---------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """Streams of documents: `read` yields those of one of the values of `splits`."""

    data: DataConfig
    splits: Mapping[str, Any]
    read: Callable[[Any], Iterable[str]]
    # The source of the documents, for meta.json; complete once all of them have been read.
    source_info: dict[str, Any] = field(default_factory=dict)

    def documents(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield (side, text) of each non-empty document of a split.

        Without a validation split, a hash of the text decides, so equal texts share a side.
        """
        for text in filter(None, self.read(self.splits[split])):
            side = split
            if VALIDATION not in self.splits:
                digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
                if int.from_bytes(digest) < self.data.holdout_fraction * 2**64:
                    side = VALIDATION
            yield side, text


@dataclass(frozen=True)
class TaskSpec:
    """The specification of a task; each file of tasks/ has one as SPEC.

    Attributes:
        least_seq_len: the smallest T at which rows hold its longest examples.
        key: the key of `data` that only this kind has; empty: none.
        span: the unit of an example's span; empty: there are no examples to be right or wrong.
        bins: the first span of each bin in a table of matches.
        num_answers: the places of a row at which something is predicted; None: all.
        num_outputs: the count of real numbers predicted there; None: a token is predicted.
    """

    tokens: Sequence[str]  # in the order of ids
    least_seq_len: int
    splits: tuple[str, ...] = (TRAIN, TEST)
    version: int = 1
    unit: str = "nats per answer token"
    objective: Literal["causal", "regression"] = "causal"
    probe: str = "answers"
    key: str = ""
    span: str = ""
    bins: tuple[int, ...] = ()
    num_answers: int | None = None
    num_outputs: int | None = None


class CorpusLeaf(Protocol):
    """A file of corpora/: where documents are found."""

    def state(self, data: DataConfig) -> list[Any]:
        """Return plain values that change with the corpus, without network access."""

    def open_corpus(self, data: DataConfig) -> Corpus:
        """Open the streams of documents."""


def corpus_leaf(kind: str) -> CorpusLeaf:
    """Return the file of corpora/ that data.kind names."""
    return cast("CorpusLeaf", import_choice("corpora", kind, "data.kind"))
