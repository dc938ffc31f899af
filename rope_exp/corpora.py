"""Streams of documents, and their assignment to training or validation."""

import functools
import hashlib
import io
import itertools
import json
import platform
import re
import sysconfig
import tokenize
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from rope_exp.errors import ConfigError, DataError, first_line, show
from rope_exp.files import json_sha256
from rope_exp.sections import DataConfig

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
        facts: further entries of the record; complete once all documents have been read.
    """

    data: DataConfig
    splits: Mapping[str, Any]
    read: Callable[[Any], Iterable[str]]
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


LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def library_files() -> dict[str, Path]:
    """Return the library's modules by name, in the order of their paths.

    Tests, installed packages and files that Python's build wrote are left out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = {}

    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        machine_made = parts[0].startswith("config-") or path.name.startswith("_sysconfigdata")
        if not machine_made and LEFT_OUT.isdisjoint(parts):
            found["/".join(parts)] = path

    return found


def open_library(data: DataConfig) -> Corpus:
    """Open the stdlib corpus, with one document per module."""
    facts: dict[str, Any] = {"python": platform.python_version()}

    def read(paths: Iterable[Path]) -> Iterator[str]:
        facts["files_not_decoded"] = 0

        for path in paths:
            try:
                with tokenize.open(path) as file:
                    text = file.read()
            except (SyntaxError, UnicodeDecodeError):
                # The module declares a wrong encoding, or declares none and is not UTF-8.
                facts["files_not_decoded"] += 1
            else:
                yield text

    return Corpus(data, {TRAIN: library_files().values()}, read, facts)


READERS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".txt": "text",
}
PACKED = (".gz", ".zst")
NAMES = f"{', '.join(READERS)} (or .gz or .zst after it)"
# Files that `save_to_disk` of datasets writes beside its .arrow files.
OF_ARROW = ("dataset_dict.json", "dataset_info.json", "state.json")
# Documents can be long, so only a few are read at once.
ROWS = 64
CHARS = 10 << 20
# A mark of the byte order at the start of a file is not text.
ENCODING = "utf-8-sig"


def open_dataset(data: DataConfig) -> Corpus:
    """Open the corpus of data=files or data=hub.

    Raises:
        ConfigError: data.path, data.subset, data.revision or data.text_column cannot be read.
        DataError: the hub did not answer.
    """
    if data.validation_split == TRAIN:
        reason = "is trained on; name another split, or null"
        raise ConfigError("data.validation_split", TRAIN, reason)
    facts = {"path": data.path}
    builder = None
    with explaining("data.path", data.path, from_hub=data.kind == "hub"):
        if data.kind == "hub":
            facts |= {"subset": data.subset, "revision": data.revision}
            builder = _builder(str(data.path), data)
        elif _has_card(root := _root(data)):
            builder = _builder(str(root), data)
        splits = _local_splits(data, root) if builder is None else builder.config.data_files

        if TRAIN not in splits:
            names = ", ".join(sorted(map(str, splits)))
            raise path_error(data, f"has no split named train; it has {names}")
        # Other splits, such as test, are never read.
        sides = {TRAIN: splits[TRAIN]}
        if data.validation_split in splits:
            sides[VALIDATION] = splits[str(data.validation_split)]
    return Corpus(data, sides, functools.partial(_read, data=data, builder=builder), facts)


def files_fingerprint(data: DataConfig) -> str:
    """Return a digest of `list_files`; contents are not read."""
    files = list_files(data)
    states: list[Any] = list(files)
    if any(_reader(Path(name)) in ("csv", "json") for name, _, _ in files):
        # Version 0.2.0 changed some texts of these formats: what it prepared is not used.
        states.append("as text")
    return json_sha256(states)


def list_files(data: DataConfig) -> list[tuple[str, int, int]]:
    """Return the name, size and time of each file, in nanoseconds.

    Raises:
        ConfigError: data.path does not exist, or cannot be read.
    """
    with explaining("data.path", data.path):
        root = _root(data)
        states = []
        for path in _files(root):
            state = path.stat()
            name = path.name if path == root else str(path.relative_to(root))
            states.append((name, state.st_size, state.st_mtime_ns))
        return states


@functools.cache
def newest_commit(path: str, revision: str | None, repo_type: str = "dataset") -> str:
    """Return the commit that a branch or tag (None: the main branch) names on the hub.

    A process asks the hub once, so all runs of a sweep read the same commit.
    """
    from huggingface_hub import HfApi

    return str(HfApi().repo_info(path, revision=revision, repo_type=repo_type).sha)


@contextmanager
def explaining(key: str, value: object, *, from_hub: bool = False) -> Iterator[None]:
    """Turn any error of a library that reads the path `value` of `key` into one sentence.

    Raises:
        ConfigError: the files cannot be read, or the hub has no such data for this user.
        DataError: the hub did not answer.
    """
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        from datasets.exceptions import DatasetNotFoundError
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        # A missing subset or an invalid Parquet file raises a ValueError.
        absent = (DatasetNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
        if not from_hub or isinstance(error, (ValueError, *absent)):
            raise ConfigError(key, value, f"cannot be read: {first_line(error)}") from None
        reason = f"the hub did not give it: {first_line(error)}; the same command tries again"
        raise DataError(f"{key}={value}: {reason}") from None


def path_error(data: DataConfig, reason: str, path: object = None) -> ConfigError:
    """Return the error of data.path, or of a file below it."""
    return ConfigError("data.path", str(path or data.path), reason)


def _root(data: DataConfig) -> Path:
    path = Path(str(data.path)).expanduser().absolute()
    if not path.exists():
        hint = "; nothing in corpora/ is distributed: docs/guide.md says what to put there"
        is_there = str(data.path).startswith("corpora/")
        raise path_error(data, f"there is no such file or folder{hint if is_there else ''}")
    # datasets resolves links to a folder when it names the folder's files.
    return path.resolve() if path.is_dir() else path


def _files(root: Path) -> Iterator[Path]:
    """Yield the files at or below a path, except hidden ones, which datasets skips."""
    for path in [root] if root.is_file() else sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            yield path


def _local_splits(data: DataConfig, root: Path) -> dict[str, list[str]]:
    """Return the readable files of a file or folder by split, as their names tell."""
    if data.subset is not None:
        reason = "is for a folder with a dataset card, or the hub; data.path has none"
        raise ConfigError("data.subset", data.subset, reason)
    files = {str(path): path.name for path in _files(root) if _reader(path)}
    if any(name.endswith(".arrow") for name in files.values()):
        files = {path: name for path, name in files.items() if name not in OF_ARROW}
    if not files:
        raise path_error(data, f"holds no file that ends in {NAMES}")
    if root.is_file():
        return {TRAIN: list(files)}

    load_datasets()
    from datasets.data_files import DataFilesDict, get_data_patterns

    listed = DataFilesDict.from_patterns(get_data_patterns(str(root)), base_path=str(root))
    splits = {str(split): [path for path in listed[split] if path in files] for split in listed}
    # If some names contain a split, datasets leaves out all others; and links to folders.
    left_out = files.keys() - set().union(*splits.values())
    left_out |= {str(path) for path in root.rglob("*") if path.is_symlink() and path.is_dir()}
    if left_out:
        reason = f"would be left out beside the files of {', '.join(splits)}"
        raise path_error(data, f"{reason}; move it, or name it for a split", min(left_out))
    return {split: paths for split, paths in splits.items() if paths}


def _has_card(root: Path) -> bool:
    """Return whether a folder's README.md lists its files."""
    from huggingface_hub import metadata_load

    card = root / "README.md"
    return card.is_file() and "configs" in (metadata_load(card) or {})


def _builder(path: str, data: DataConfig) -> Any:
    """Let datasets find the reader and the splits of a folder with a card, here or on the hub."""
    datasets = load_datasets()
    # Hints from another server and a download count are not part of the data, and could fail.
    datasets.config.USE_PARQUET_EXPORT = False
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False

    # If the hub refuses, the library would read any revision in its cache: give it an empty one.
    with TemporaryDirectory(prefix="rope_exp-") as empty:
        return datasets.load_dataset_builder(
            path, data.subset, revision=data.revision, cache_dir=empty
        )


def load_datasets() -> Any:
    """Import `datasets` without torch, progress bars and logs."""
    import datasets
    import pyarrow
    from fsspec.compression import compr, register_compression

    if "zstd" not in compr:
        # Arrow supports zstd; datasets would require one more package.
        register_compression(
            "zstd", lambda file, **_: pyarrow.CompressedInputStream(file, "zstd"), "zst"
        )

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


def _reader(path: Path) -> str | None:
    """Return the reader for a file's name, which may also end in .gz or .zst."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return READERS.get(next((each for each in reversed(suffixes) if each not in PACKED), ""))


# -- readers ---------------------------------------------------------------------------------------


def _read(paths: Iterable[str], data: DataConfig, builder: Any) -> Iterator[str]:
    """Yield the texts of files here or on the hub.

    Args:
        builder: of a dataset with a card, which names one reader for all files and may set its
            options; None: each file's name tells its reader.
    """
    from datasets.utils.file_utils import xopen

    manager = load_datasets().StreamingDownloadManager()
    from_hub = data.kind == "hub"
    for path in paths:
        with explaining("data.path", data.path if from_hub else path, from_hub=from_hub):
            reader = type(builder).__module__.rpartition(".")[2] if builder else _reader(Path(path))
            if reader not in TEXTS:
                raise path_error(data, f"is for the reader {reader}; there are {NAMES}")

            # The file itself, unpacked, or each member of an archive.
            for url in manager.iter_files(manager.extract(path)):
                with xopen(url, "rb") as file:
                    for text in TEXTS[reader](file, data, builder and builder.config):
                        if not isinstance(text, str | None):
                            reason = f"holds {type(text).__name__}, not text"
                            raise ConfigError("data.text_column", data.text_column, reason)
                        # JSON can hold half of a surrogate pair, which is no text.
                        (text or "").encode()
                        yield text or ""


def _parquet_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file) as table:
        _check_column(data, table.schema_arrow.names)
        for batch in table.iter_batches(ROWS, columns=[data.text_column]):
            yield from batch.column(0).to_pylist()


def _arrow_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[Any]:
    from pyarrow import ipc

    for batch in ipc.open_stream(file):
        _check_column(data, batch.schema.names)
        yield from batch.column(data.text_column).to_pylist()


def _csv_texts(file: BinaryIO, data: DataConfig, options: Any) -> Iterator[str]:
    import pandas as pd

    # Every cell is text: pandas would read NA and null as missing values, and digits as numbers.
    as_text = {"dtype": str, "na_filter": False, "chunksize": ROWS}
    with pd.read_csv(file, **(options.pd_read_csv_kwargs if options else {}) | as_text) as tables:
        for table in tables:
            _check_column(data, list(table.columns))
            if not isinstance(table.index, pd.RangeIndex):
                # pandas would take the first cell of each row for the row's name.
                raise ValueError("rows have more cells than the header; quote a text with commas")
            yield from table[data.text_column]


def _json_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[Any]:
    """Yield the texts of JSON objects: one a line, or all of a file in one value."""
    column = data.text_column
    keys: dict[Any, None] = {}
    with io.TextIOWrapper(file, ENCODING) as lines:
        for row in _json_rows(lines):
            # An array may also hold the texts themselves.
            values: dict[Any, Any] = row if isinstance(row, dict) else {column: row}
            keys |= dict.fromkeys(values)
            yield values.get(column)
    if keys:
        _check_column(data, list(keys))


def _json_rows(lines: io.TextIOWrapper) -> Iterator[Any]:
    """Yield the values of a file of JSON; an array, or a value of several lines, is read whole."""
    first = next(filter(str.strip, lines), "[]")
    try:
        is_lines = isinstance(json.loads(first), dict)
    except ValueError:
        is_lines = False

    if is_lines:
        yield from map(json.loads, itertools.chain([first], filter(str.strip, lines)))
        return
    value = json.loads(first + lines.read())
    yield from value if isinstance(value, list) else [value]


def _plain_texts(file: BinaryIO, data: DataConfig, options: Any) -> Iterator[str]:
    """Yield the lines, the paragraphs or all of a plain text."""
    sample_by = data.sample_by or options.sample_by
    with io.TextIOWrapper(file, ENCODING) as text:
        if sample_by == "line":
            yield from (line.rstrip("\n") for line in text)
        elif sample_by == "document":
            yield text.read()
        else:
            rest = ""
            while chunk := text.read(CHARS):
                *whole, rest = (rest + chunk).split("\n\n")
                yield from whole
            yield rest


# Functions of a binary file, the config and datasets' options of the format, by reader.
TEXTS = {
    "parquet": _parquet_texts,
    "arrow": _arrow_texts,
    "json": _json_texts,
    "csv": _csv_texts,
    "text": _plain_texts,
}


def _check_column(data: DataConfig, names: list[str]) -> None:
    if data.text_column not in names:
        reason = f"is no column; there are {show(', '.join(names))}"
        raise ConfigError("data.text_column", data.text_column, reason)
