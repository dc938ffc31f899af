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
    files = library_files().values()
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

    text_bytes = sum(path.stat().st_size for path in files)
    return Corpus(data, {TRAIN: files}, read, text_bytes, facts)


READERS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".txt": "text",
}
# Files that `save_to_disk` of datasets writes beside its .arrow files.
OF_ARROW = ("dataset_dict.json", "dataset_info.json", "state.json")
# Other suffixes of packed files, which may hold text.
PACKED = (".7z", ".bz2", ".lz4", ".tar", ".tgz", ".xz", ".zip")
# Documents can be long, so only a few are read at once.
ROWS = 64
CHARS = 10 << 20
SPACES = re.compile(r"\s*")
# A mark of the byte order at the start of a file is not text.
ENCODING = "utf-8-sig"


def open_dataset(data: DataConfig) -> Corpus:
    """Open the corpus of data=files or data=hub.

    Raises:
        ConfigError: data.path, data.subset, data.revision or data.text_column cannot be read.
        DataError: the hub did not answer.
    """
    with explaining(data):
        if data.kind == "hub":
            builder = _hub_builder(data)
            sides = _choose_sides(data, builder.config.data_files)
            facts = {"path": data.path, "subset": data.subset, "revision": data.revision}
            return Corpus(data, sides, _reading(data, builder), facts=facts)

        root = _root(data)
        _check_names(data, root)
        builder = _card_builder(data, root)
        splits = _local_splits(data, root) if builder is None else builder.config.data_files
        sides = _choose_sides(data, splits)
        paths = map(Path, itertools.chain.from_iterable(sides.values()))
        num_bytes = sum(path.stat().st_size for path in paths)
        return Corpus(data, sides, _reading(data, builder), num_bytes, {"path": data.path})


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
    with explaining(data):
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
def explaining(data: DataConfig, path: str | None = None) -> Iterator[None]:
    """Turn any error of a library that reads the corpus into one sentence.

    Args:
        path: the file being read; None: data.path.
    Raises:
        ConfigError: the files cannot be read, or the hub has no such dataset for this user.
        DataError: the hub did not answer.
    """
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        said = first_line(error)
        if data.kind == "files" or _is_mistake(error):
            raise path_error(data, f"cannot be read: {said}", path) from None
        hint = "the same command tries again"
        raise DataError(f"data.path={data.path}: the hub did not give it: {said}; {hint}") from None


def path_error(data: DataConfig, allowed: str, path: str | None = None) -> ConfigError:
    """Return the error of data.path, or of a file below it."""
    return ConfigError("data.path", path or data.path, allowed)


def _is_mistake(error: Exception) -> bool:
    """Return whether the hub answered that the data does not exist, or the data is unreadable."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    absent = (DatasetNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
    # A missing subset or an invalid Parquet file raises a ValueError.
    return isinstance(error, (ValueError, *absent))


def _root(data: DataConfig) -> Path:
    path = Path(str(data.path)).expanduser().absolute()
    if not path.exists():
        hint = "; nothing in corpora/ is distributed: docs/guide.md says what to put there"
        is_there = str(data.path).startswith("corpora/")
        raise path_error(data, f"there is no such file or folder{hint if is_there else ''}")
    # datasets resolves links to a folder when it names the folder's files.
    return path.resolve() if path.is_dir() else path


def _check_names(data: DataConfig, root: Path) -> None:
    """Refuse names that `datasets` takes for patterns, and links that it does not follow."""
    if re.search(r"[*?\[\]]", str(root)):
        raise path_error(data, "may not hold any of * ? [ ], which mean patterns")
    for path in root.rglob("*"):
        if path.is_symlink() and path.is_dir():
            reason = "is a link to a folder, which would be left out; link its files"
            raise path_error(data, reason, str(path))


def _files(root: Path) -> Iterator[Path]:
    """Yield the files at or below a path, except hidden ones, which datasets skips."""
    for path in [root] if root.is_file() else sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            yield path


def _local_splits(data: DataConfig, root: Path) -> dict[str, list[str]]:
    """Return the readable files of a file or folder by split, as their names tell."""
    if data.subset is not None:
        allowed = "is for a folder with a dataset card, or the hub; data.path has none"
        raise ConfigError("data.subset", data.subset, allowed)
    if root.is_file():
        if _reader(root) is None:
            raise path_error(data, f"is no file that ends in {_names()}")
        return {TRAIN: [str(root)]}

    load_datasets()
    from datasets.data_files import DataFilesDict, get_data_patterns

    files = {str(path): _reader(path) for path in _files(root)}
    if "arrow" in files.values():
        files = {path: files[path] for path in files if Path(path).name not in OF_ARROW}
    if not any(files.values()):
        raise path_error(data, f"holds no file that ends in {_names()}")

    listed = DataFilesDict.from_patterns(get_data_patterns(str(root)), base_path=str(root))
    known = set(itertools.chain.from_iterable(listed.values()))
    for path in files:
        if files[path] and path not in known:
            # If some names contain a split, datasets leaves out all others.
            names = ", ".join(map(str, listed))
            reason = f"would be left out beside the files of {names}"
            raise path_error(data, f"{reason}; move it, or name it for a split", path)
        if path.lower().endswith(PACKED):
            raise path_error(data, "is packed; unpack it, or pack its files as .gz or .zst", path)

    splits = {str(split): [path for path in listed[split] if files.get(path)] for split in listed}
    return {split: paths for split, paths in splits.items() if paths}


def _card_builder(data: DataConfig, root: Path) -> Any:
    """Let datasets find the files of a folder whose README.md lists them; None without one."""
    from huggingface_hub import metadata_load

    card = root / "README.md"
    if not card.is_file() or "configs" not in (metadata_load(card) or {}):
        return None
    return load_datasets().load_dataset_builder(str(root), data.subset)


def _hub_builder(data: DataConfig) -> Any:
    """Let datasets find the reader and the splits of a dataset of the hub."""
    datasets = load_datasets()
    # Hints from another server and a download count are not part of the data, and could fail.
    datasets.config.USE_PARQUET_EXPORT = False
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False

    # If the hub refuses, the library would read any revision in its cache: give it an empty one.
    with TemporaryDirectory(prefix="rope_exp-") as empty:
        return datasets.load_dataset_builder(
            data.path, data.subset, revision=data.revision, cache_dir=empty
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
    *_, last = ["", *(suffix.lower() for suffix in path.suffixes)]
    if last in (".gz", ".zst"):
        last = path.with_suffix("").suffix.lower()
    return READERS.get(last)


def _names() -> str:
    return f"{', '.join(READERS)} (or .gz or .zst after it)"


def _choose_sides(data: DataConfig, splits: Mapping[Any, Any]) -> dict[str, Any]:
    """Choose the splits to train and to validate on; others, such as test, are never read."""
    if TRAIN not in splits:
        names = ", ".join(sorted(map(str, splits)))
        raise path_error(data, f"has no split named train; it has {names}")

    sides = {TRAIN: splits[TRAIN]}
    if data.validation_split in splits:
        sides[VALIDATION] = splits[data.validation_split]
    return sides


# -- readers ---------------------------------------------------------------------------------------


def _reading(data: DataConfig, builder: Any) -> Any:
    """Return the function that yields the texts of some files.

    Args:
        builder: of a dataset with a card, which names one reader for all files and may set its
            options; None: each file's name tells its reader.
    """
    if builder is None:
        return functools.partial(_read, data=data)
    reader = type(builder).__module__.rpartition(".")[2]
    if reader not in READERS.values():
        raise path_error(data, f"is for the reader {reader}; there are {_names()}")
    return functools.partial(_read, data=data, reader=reader, options=builder.config)


def _read(
    paths: Iterable[str], data: DataConfig, reader: str | None = None, options: Any = None
) -> Iterator[str]:
    """Yield the texts of files here or on the hub."""
    read = {
        "parquet": _parquet_texts,
        "arrow": _arrow_texts,
        "json": _json_texts,
        "csv": _csv_texts,
        "text": _plain_texts,
    }
    for path in paths:
        with explaining(data, path if data.kind == "files" else None):
            for file in _open(path):
                texts = read[reader or str(_reader(Path(path)))](file, data, options)
                yield from filter(None, texts)


def _open(path: str) -> Iterator[Any]:
    """Yield the binary files at a path or URL: itself unpacked, or each member of an archive."""
    from datasets.utils.file_utils import xopen

    manager = load_datasets().StreamingDownloadManager()
    for url in manager.iter_files(manager.extract(path)):
        with xopen(url, "rb") as file:
            yield file


def _parquet_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[str | None]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file) as table:
        _check_column(data, table.schema_arrow.names)
        for batch in table.iter_batches(ROWS, columns=[data.text_column]):
            yield from _texts(batch, data)


def _arrow_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[str | None]:
    from pyarrow import ipc

    for batch in ipc.open_stream(file):
        yield from _texts(batch, data)


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


def _json_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[str | None]:
    """Yield the texts of JSON objects: one a line, one after another, or in an array."""
    column = data.text_column
    names: list[Any] = []
    is_found = False
    with io.TextIOWrapper(file, ENCODING) as lines:
        for row in _json_rows(lines):
            # An array may also hold the texts themselves.
            values = row if isinstance(row, dict) else {column: row}
            names = names or list(values)
            is_found = is_found or column in values
            text = values.get(column)
            if not isinstance(text, str | None):
                raise _no_text(data, type(text).__name__)
            # JSON can hold half of a surrogate pair, which is no text.
            (text or "").encode()
            yield text
    if names and not is_found:
        _check_column(data, names)


def _json_rows(lines: io.TextIOWrapper) -> Iterator[Any]:
    """Yield the values of a file of JSON."""
    filled = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    _, first = next(filled, (0, ""))
    try:
        row = json.loads(first)
    except ValueError:
        row = None
    if isinstance(row, dict):
        yield row
        for number, line in filled:
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None
            yield row
        return

    # An array, or values that are not on lines of their own, are read whole.
    text = (first + lines.read()).strip()
    end = 0
    while end < len(text):
        value, end = json.JSONDecoder().raw_decode(text, end)
        yield from value if isinstance(value, list) else [value]
        end = SPACES.match(text, end).end()  # type: ignore[union-attr]


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


def _texts(table: Any, data: DataConfig) -> list[str | None]:
    """Return the text column of an Arrow table."""
    from pyarrow import types

    _check_column(data, table.schema.names)
    column = table.column(data.text_column)
    kind = column.type
    if types.is_dictionary(kind):
        # pandas' categories store texts as numbers.
        kind = kind.value_type
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if not (is_text or types.is_null(kind)):
        raise _no_text(data, column.type)
    return list(column.to_pylist())


def _check_column(data: DataConfig, names: list[str]) -> None:
    if data.text_column not in names:
        found = show(", ".join(names))
        raise ConfigError("data.text_column", data.text_column, f"is no column; there are {found}")


def _no_text(data: DataConfig, kind: object) -> ConfigError:
    return ConfigError("data.text_column", data.text_column, f"holds {kind}, not text")
