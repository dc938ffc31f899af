"""Streams of documents, and their assignment to training or validation."""

import functools
import glob
import hashlib
import io
import itertools
import json
import platform
import sysconfig
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from rope_exp.errors import ConfigError, DataError, first_line, show
from rope_exp.files import files_sha256, json_sha256
from rope_exp.sections import DataConfig

TRAIN = "train"
VALIDATION = "validation"
SIDES = (TRAIN, VALIDATION)

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
# Files that `save_to_disk` of datasets writes beside its .arrow files.
OF_ARROW = ("dataset_dict.json", "dataset_info.json", "state.json")
PACKED = (".gz", ".zst")
ROWS = 64  # are read at once
ENCODING = "utf-8-sig"  # a mark of the byte order is not text


@dataclass(frozen=True)
class Corpus:
    """Streams of documents: `read` yields those of one of the values of `splits`."""

    data: DataConfig
    splits: Mapping[str, Any]
    read: Callable[[Any], Iterable[str]]
    # Further entries of the record; complete once all documents have been read.
    facts: dict[str, Any] = field(default_factory=dict)

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


def fingerprint(data: DataConfig) -> str:
    """Return 64 hexadecimal digits that change with the corpus, without network access."""
    if data.kind == "stdlib":
        return files_sha256(library_files())
    if data.kind == "hub":
        return json_sha256([data.path, data.subset, data.revision])

    states: list[Any] = list_files(data)
    if any(_format(name) in ("csv", "json", "jsonl") for name, *_ in states):
        # Version 0.2.0 changed some texts of these formats: what it prepared is not used.
        states.append("as text")
    return json_sha256(states)


def library_files() -> dict[str, Path]:
    """Return the modules of Python's library by name, in the order of their paths."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        # Python's build writes these.
        is_built = parts[0].startswith("config-") or path.name.startswith("_sysconfigdata")
        if not is_built and LEFT_OUT.isdisjoint(parts):
            files["/".join(parts)] = path
    return files


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


def open_dataset(data: DataConfig) -> Corpus:
    """Open the corpus of data=files or data=hub."""
    if data.validation_split == TRAIN:
        reason = "is trained on; name another split, or null"
        raise ConfigError("data.validation_split", TRAIN, reason)
    datasets = _import_datasets()
    from huggingface_hub import metadata_load

    from_hub = data.kind == "hub"
    facts = {"path": data.path}
    if from_hub:
        facts |= {"subset": data.subset, "revision": data.revision}
    with explaining("data.path", data.path, from_hub=from_hub):
        place = str(data.path) if from_hub else str(_root(data))
        card = Path(place, "README.md")
        options = None
        reader = None
        if from_hub or (card.is_file() and "configs" in (metadata_load(card) or {})):
            # If the hub refuses, datasets would read its cache: it gets an empty one.
            with TemporaryDirectory(prefix="rope_exp-") as empty:
                builder = datasets.load_dataset_builder(
                    place, data.subset, revision=data.revision, cache_dir=empty
                )
            options = builder.config
            splits = options.data_files
            reader = type(builder).__module__.rpartition(".")[2].replace("text", "txt")
            if reader not in TEXTS:
                raise ConfigError("data.path", data.path, f"needs the reader {reader}, not ours")
        else:
            splits = _local_splits(data, Path(place))

        if TRAIN not in splits:
            names = ", ".join(sorted(map(str, splits)))
            raise ConfigError("data.path", data.path, f"has no split named train; it has {names}")
        # Other splits, such as test, are never read.
        sides = {TRAIN: splits[TRAIN]}
        if data.validation_split in splits:
            sides[VALIDATION] = splits[data.validation_split]
    read = functools.partial(_read, data=data, reader=reader, options=options)
    return Corpus(data, sides, read, facts)


def list_files(data: DataConfig) -> list[tuple[str, int, int]]:
    """Return the name, size and time (in nanoseconds) of each file that is not hidden."""
    root = _root(data)
    # Path.rglob follows no links.
    names = sorted(map(Path, glob.glob("**", root_dir=root, recursive=True)))  # noqa: PTH207
    # `datasets` skips these names, too.
    names = [name for name in names if not any(part.startswith("__") for part in name.parts)]
    files = {str(name): root / name for name in names if (root / name).is_file()}
    if root.is_file():
        files = {root.name: root}
    return [(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in files.items()]


@contextmanager
def explaining(key: str, value: object, *, from_hub: bool = False) -> Iterator[None]:
    """Explain any error of a library by the path `value` of `key`, or by a hub without answer."""
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


def _import_datasets() -> Any:
    """Import `datasets` with zstd, and without progress bars, logs and requests beside the data."""
    import datasets
    import pyarrow
    from fsspec.compression import compr, register_compression

    if "zstd" not in compr:
        # Arrow supports zstd; datasets would require one more package.
        reader = functools.partial(pyarrow.CompressedInputStream, compression="zstd")
        register_compression("zstd", lambda file, **_: reader(file), "zst")
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    # Hints from another server and a download count are not part of the data, and could fail.
    datasets.config.USE_PARQUET_EXPORT = False
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets


def _root(data: DataConfig) -> Path:
    path = Path(str(data.path)).expanduser().absolute()
    if not path.exists():
        raise ConfigError("data.path", data.path, "there is no such file or folder")
    # datasets resolves links to a folder when it names the folder's files.
    return path.resolve() if path.is_dir() else path


def _format(path: str) -> str:
    """Return the last suffix of a file's name, before .gz or .zst."""
    suffixes = Path(path.lower()).suffixes
    return next((suffix[1:] for suffix in reversed(suffixes) if suffix not in PACKED), "")


def _local_splits(data: DataConfig, root: Path) -> dict[str, list[str]]:
    """Return the readable files of a file or folder by split, as their names tell."""
    if data.subset is not None:
        reason = "is for a folder with a dataset card, or the hub; data.path has none"
        raise ConfigError("data.subset", data.subset, reason)
    names = [Path(name) for name, *_ in list_files(data) if _format(name) in TEXTS]
    if any(name.suffix == ".arrow" for name in names):
        names = [name for name in names if name.name not in OF_ARROW]
    if not names:
        reason = f"holds no file that ends in .{', .'.join(TEXTS)} (or .gz or .zst after it)"
        raise ConfigError("data.path", data.path, reason)
    if root.is_file():
        return {TRAIN: [str(root)]}

    from datasets.data_files import DataFilesDict, get_data_patterns

    files = {str(root / name) for name in names}
    listed = DataFilesDict.from_patterns(get_data_patterns(str(root)), base_path=str(root))
    splits = {str(split): [path for path in listed[split] if path in files] for split in listed}
    # If some names contain a split, datasets leaves out all others, and what is behind links.
    left_out = files.difference(*splits.values())
    if left_out:
        reason = f"would be left out beside the files of {', '.join(splits)}"
        raise ConfigError("data.path", min(left_out), f"{reason}; move it, or name it for a split")
    return {split: paths for split, paths in splits.items() if paths}


# -- readers ---------------------------------------------------------------------------------------


def _read(
    paths: Iterable[str], data: DataConfig, reader: str | None, options: Any
) -> Iterator[str]:
    """Yield the texts of files here or on the hub, by the reader of a card or of their names."""
    from datasets import StreamingDownloadManager
    from datasets.utils.file_utils import xopen

    manager = StreamingDownloadManager()
    from_hub = data.kind == "hub"
    for path in paths:
        with explaining("data.path", data.path if from_hub else path, from_hub=from_hub):
            texts = TEXTS[reader or _format(path)]
            # The file itself, unpacked, or each member of an archive.
            for url in manager.iter_files(manager.extract(path)):
                with xopen(url, "rb") as file:
                    for text in texts(file, data, options):
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


def _json_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[Any]:
    """Yield the texts of JSON: an object a line, or one value, an object or an array."""
    with io.TextIOWrapper(file, ENCODING) as lines:
        filled = filter(str.strip, lines)
        first = next(filled, "[]")
        try:
            is_lines = isinstance(json.loads(first), dict)
        except ValueError:
            is_lines = False

        rows: Iterable[Any] = map(json.loads, itertools.chain([first], filled))
        if not is_lines:
            value = json.loads(first + lines.read())
            rows = value if isinstance(value, list) else [value]

        columns: dict[Any, None] = {}
        for row in rows:
            values: dict[Any, Any] = row if isinstance(row, dict) else {data.text_column: row}
            columns |= dict.fromkeys(values)
            yield values.get(data.text_column)
        if columns:
            _check_column(data, columns)


def _csv_texts(file: BinaryIO, data: DataConfig, options: Any) -> Iterator[str]:
    import pandas as pd

    # Every cell is text: pandas would read NA and null as missing values, and digits as numbers.
    as_text = {"dtype": str, "na_filter": False, "chunksize": ROWS}
    with pd.read_csv(file, **(options.pd_read_csv_kwargs if options else {}) | as_text) as tables:
        for table in tables:
            _check_column(data, table.columns)
            if not isinstance(table.index, pd.RangeIndex):
                # pandas would take the first cell of each row for the row's name.
                raise ValueError("rows have more cells than the header; quote a text with commas")
            yield from table[data.text_column]


def _plain_texts(file: BinaryIO, data: DataConfig, options: Any) -> Iterator[str]:
    sample_by = data.sample_by or options.sample_by
    with io.TextIOWrapper(file, ENCODING) as text:
        if sample_by == "line":
            yield from (line.rstrip("\n") for line in text)
        elif sample_by == "paragraph":
            yield from text.read().split("\n\n")
        else:
            yield text.read()


# Readers by suffix: functions of a binary file, the config, and the options of a dataset's card.
TEXTS: dict[str, Callable[[BinaryIO, DataConfig, Any], Iterator[Any]]] = {
    "parquet": _parquet_texts,
    "arrow": _arrow_texts,
    "json": _json_texts,
    "jsonl": _json_texts,
    "csv": _csv_texts,
    "txt": _plain_texts,
}


def _check_column(data: DataConfig, columns: Collection[Any]) -> None:
    if data.text_column not in columns:
        reason = f"is no column; there are {show(', '.join(columns))}"
        raise ConfigError("data.text_column", data.text_column, reason)
