"""A prepared corpus: the folder that a preparation left, and meta.json, which vouches for it.

meta.json is checked against itself, against the tokenizer's digest and against the sizes of the
token files whenever a folder is opened; the tokens themselves when they are read (store.py).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from rope_exp.config.schema import Count, Natural, Rule, Sha256, convert
from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import SIDES, TRAIN, VALIDATION
from rope_exp.data.store import TokenFile, Tokens, damaged, token_dtype
from rope_exp.system.errors import DataError, first_line
from rope_exp.system.files import json_sha256, open_regular, write_json

FORMAT = 2  # of the folder
META = "meta.json"
TOKENIZER = "tokenizer.json"

# Of meta.json without the digests of its blocks, which take a 64th of the blocks at the most, and
# of the largest vocabularies' tokenizers. What is longer was not written here.
META_BYTES = 1 << 20
TOKENIZER_BYTES = 1 << 30

Digests = Annotated[
    str,
    Rule("must be digests of 64 hexadecimal digits", re.compile("([0-9a-f]{64})+").fullmatch),
]


class BySide(TypedDict):
    """A count of each side."""

    train: Natural
    validation: Natural


class CorpusFacts(TypedDict):
    """What the record says of a corpus; it may say more."""

    documents: BySide
    text_bytes: BySide
    tokens: BySide
    end_id: Natural


class BlockDigests(TypedDict):
    """The digests of each side's blocks, one after another."""

    train: Digests
    validation: Digests


class Meta(TypedDict):
    """The content of meta.json."""

    format: Annotated[int, Rule(f"must be {FORMAT}", lambda number: number == FORMAT)]
    vocab_size: Count
    data_sha256: Sha256
    tokenizer_sha256: Sha256
    meta_sha256: Sha256
    block_sha256: BlockDigests
    corpus: CorpusFacts


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus.

    Attributes:
        folder: where its files are.
        vocab_size: one more than the largest id.
        data_sha256: of the tokenizer and of every token.
        corpus: what the record says of it (source, fingerprint; documents, bytes and tokens).
        tokens: of each side.
    """

    folder: Path
    vocab_size: int
    data_sha256: str
    corpus: dict[str, Any]
    tokens: Mapping[str, Tokens]

    @property
    def tokenizer_file(self) -> Path:
        """The path of tokenizer.json, for `load_tokenizer`."""
        return self.folder / TOKENIZER

    @property
    def num_train_tokens(self) -> int:
        """How many tokens one epoch has."""
        return len(self.tokens[TRAIN])

    @property
    def tokenizer_json(self) -> str:
        """The content of tokenizer.json."""
        return self.tokenizer_file.read_text(encoding="utf-8")

    def verify(self) -> None:
        """Read every block and compare its digest.

        Raises:
            DataError: one differs; the message names the file.
        """
        for tokens in self.tokens.values():
            tokens.verify()


def write_meta(
    folder: Path, vocab_size: int, files: Mapping[str, TokenFile], corpus: dict[str, Any]
) -> None:
    """Write meta.json beside the tokenizer and the token files, which are whole."""
    tokenizer = (folder / TOKENIZER).read_bytes()
    values = {
        "format": FORMAT,
        "vocab_size": vocab_size,
        "tokenizer_sha256": hashlib.sha256(tokenizer).hexdigest(),
        "corpus": corpus,
        "block_sha256": {side: file.digests.hex() for side, file in files.items()},
    }
    values["data_sha256"] = _data_sha256(values)
    values["meta_sha256"] = meta_sha256(values)
    write_json(folder / META, values)


def open_prepared(folder: Path, data: DataConfig) -> Prepared:
    """Open a prepared folder and check what it says of itself.

    Raises:
        DataError: a file is damaged; the message names it and says what to do.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise DataError(
            f"{folder} is a link or a file, not a prepared folder; remove it and prepare again"
        )

    meta_file = folder / META
    try:
        num_bytes = sum(path.lstat().st_size for path in folder.glob("*.bin"))
        meta = _parse(_read(meta_file, META_BYTES + num_bytes // 64))
    except (ValueError, RecursionError) as error:
        raise damaged(meta_file, f"is damaged ({first_line(error)})") from None

    tokenizer_file = folder / TOKENIZER
    if (
        hashlib.sha256(_read(tokenizer_file, TOKENIZER_BYTES)).hexdigest()
        != meta["tokenizer_sha256"]
    ):
        raise damaged(tokenizer_file, "has changed")

    corpus = {"name": data.name, "kind": data.kind, **meta["corpus"]}
    if "path" in corpus:
        # Who prepared it may have found the same content elsewhere.
        corpus["path"] = data.path
    dtype = token_dtype(meta["vocab_size"])
    tokens = {}
    for side in SIDES:
        digests = bytes.fromhex(meta["block_sha256"][side])
        tokens[side] = Tokens(folder / f"{side}.bin", dtype, corpus["tokens"][side], digests)
    return Prepared(folder, meta["vocab_size"], meta["data_sha256"], corpus, tokens)


def meta_sha256(values: Mapping[str, Any]) -> str:
    """Return the digest of all that meta.json holds but this digest itself."""
    return json_sha256({key: value for key, value in values.items() if key != "meta_sha256"})


def _read(path: Path, max_bytes: int) -> bytes:
    """Read a file that is larger than `max_bytes` only where it was not written here."""
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise damaged(path, f"cannot be read: {error.strerror}") from None

    if len(content) > max_bytes:
        raise damaged(path, f"is longer than {max_bytes:,} bytes")
    return content


def _parse(content: bytes) -> dict[str, Any]:
    """Parse meta.json, and check it against itself."""
    meta: dict[str, Any] = convert(Meta, json.loads(content), "")
    if meta["corpus"]["end_id"] >= meta["vocab_size"]:
        raise ValueError("corpus.end_id must be the id of a token")

    if meta["meta_sha256"] != meta_sha256(meta):
        raise ValueError("its contents have changed")
    if meta["data_sha256"] != _data_sha256(meta):
        raise ValueError("its data_sha256 is not that of its digests")
    return meta


def _data_sha256(meta: Mapping[str, Any]) -> str:
    dtype = token_dtype(meta["vocab_size"]).name
    blocks = meta["block_sha256"]
    return json_sha256([meta["tokenizer_sha256"], dtype, blocks[TRAIN], blocks[VALIDATION]])
