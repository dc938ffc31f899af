"""Corpora that `datasets` finds, in files here or on the hub, and readers of their texts."""

import functools
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from rope_exp.corpus import TRAIN, VALIDATION, Corpus
from rope_exp.errors import ConfigError, show
from rope_exp.hub import refuse_load_errors
from rope_exp.sections import DataConfig

PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")
# Names that say that a file holds a corpus or a part of one, in a format that is not read here.
UNREAD = {
    "7z",
    "avro",
    "conll",
    "conllu",
    "fa",
    "faa",
    "fasta",
    "fastq",
    "fq",
    "h5",
    "hdf5",
    "lance",
    "lz4",
    "msgpack",
    "ods",
    "orc",
    "parq",
    "pq",
    "rar",
    "sqlite",
    "sqlite3",
    "tar",
    "tbz2",
    "text",
    "tfrecord",
    "tgz",
    "txz",
    "vortex",
    "warc",
    "wet",
    "xls",
    "xlsx",
    "xml",
}
ROWS = 64  # are read at once
HEAD_BYTES = 2**20  # of a CSV file, which hold its header
IPC_FILE = b"ARROW1"  # the first bytes of an Arrow file that is no stream
ENCODING = "utf-8-sig"  # a mark of the byte order is not text


def with_card(data: DataConfig, place: str) -> Corpus:
    """Open the corpus of a folder with a dataset card, or of a repository on the hub."""
    from datasets import load_dataset_builder

    # If the hub refuses, datasets would read its cache: it gets an empty one.
    with TemporaryDirectory(prefix="rope_exp-") as empty:
        builder = load_dataset_builder(place, data.subset, revision=data.revision, cache_dir=empty)
    reader = type(builder).__module__.rpartition(".")[2].replace("text", "txt")
    if reader not in TEXTS:
        raise ConfigError("data.path", data.path, f"needs the reader {reader}, not ours")
    return corpus_of(data, builder.config.data_files, reader, builder.config)


def corpus_of(data: DataConfig, splits: Any, reader: str = "", options: Any = None) -> Corpus:
    """Return the corpus of the files of each split.

    Args:
        data: the section of the run's config; its validation_split names one of `splits`.
            If it is null, or `validation` where there is none, a share of train is held out.
        splits: the addresses of files by split, here or on the hub. Others than train and the
            validation split are never read.
        reader: the key in TEXTS for all files; empty: the suffix of each file's name says it.
        options: the builder's config of a dataset card, such as a separator; None without one.
    Raises:
        ConfigError: there is no split named train, or validation_split names it, or a split that
            does not exist.
    """
    if data.validation_split == TRAIN:
        reason = "is trained on; name another split, or null"
        raise ConfigError("data.validation_split", TRAIN, reason)
    if TRAIN not in splits:
        names = ", ".join(sorted(map(str, splits)))
        raise ConfigError("data.path", data.path, f"has no split named train; it has {names}")
    if data.validation_split not in {None, VALIDATION, *splits}:
        names = ", ".join(sorted({*map(str, splits), VALIDATION} - {TRAIN}))
        reason = f"is no split of these data; it must be one of {names}, or null"
        raise ConfigError("data.validation_split", data.validation_split, reason)
    sides = {TRAIN: splits[TRAIN]}
    if data.validation_split in splits:
        sides[VALIDATION] = splits[data.validation_split]
    keys = ["path"]
    if data.kind == "hub":
        keys += ["subset", "revision"]
    source_info = {key: getattr(data, key) for key in keys}
    read = functools.partial(_read, data=data, reader=reader, options=options)
    return Corpus(data, sides, read, source_info)


def set_up_datasets() -> None:
    """Let `datasets` read zstd; switch off its bars, its logs, and requests for other than data."""
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


def format_of(path: str) -> str:
    """Return the last suffix of a file's name, before .gz and the like."""
    suffixes = Path(path.lower()).suffixes
    return next((suffix[1:] for suffix in reversed(suffixes) if suffix not in PACKED), "")


def is_unread(path: str) -> bool:
    """Return whether a file's name says that it holds data, and none of TEXTS reads it."""
    suffix = format_of(path)
    # A packed file without a format in its name can only be data.
    return suffix in UNREAD or (suffix not in TEXTS and path.lower().endswith(PACKED))


def _read(paths: Iterable[str], data: DataConfig, reader: str, options: Any) -> Iterator[str]:
    """Yield the texts of files here or on the hub."""
    from datasets import StreamingDownloadManager
    from datasets.utils.file_utils import xopen

    manager = StreamingDownloadManager()
    from_hub = data.kind == "hub"
    for path in paths:
        # A user knows the name of a repository, and not the addresses of its files.
        place = data.path if from_hub else path
        with refuse_load_errors("data.path", place, from_hub=from_hub):
            texts = TEXTS[reader or format_of(path)]
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

    # A stream, as `datasets` writes it, or a file, which begins with its own name.
    is_file = file.read(len(IPC_FILE)) == IPC_FILE
    file.seek(0)
    if is_file:
        table = ipc.open_file(file)
        batches = map(table.get_batch, range(table.num_record_batches))
    else:
        table = ipc.open_stream(file)
        batches = iter(table)

    _check_column(data, table.schema.names)
    for batch in batches:
        yield from batch.column(data.text_column).to_pylist()


def _json_texts(file: BinaryIO, data: DataConfig, _: Any) -> Iterator[Any]:
    """Yield the texts of JSON: an object a line, or one value, an object or an array."""
    with io.TextIOWrapper(file, ENCODING) as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        number, first = next(numbered, (1, "[]"))
        try:
            is_lines = isinstance(_json_value(first), dict)
        except ValueError:
            is_lines = False

        rows: Iterable[Any] = itertools.starmap(
            _json_row, itertools.chain([(number, first)], numbered)
        )
        if not is_lines:
            value = _json_value(first + lines.read())
            rows = value if isinstance(value, list) else [value]

        columns: dict[Any, None] = {}
        for row in rows:
            values: dict[Any, Any] = row if isinstance(row, dict) else {data.text_column: row}
            if isinstance(row, _Repeating) and data.text_column in row:
                _check_column(data, row.keys_in_order)
            columns |= dict.fromkeys(values)
            yield values.get(data.text_column)
        if columns:
            _check_column(data, columns)


class _Repeating(dict[str, Any]):
    """A JSON object that has a key twice; as in Python, the last value counts."""

    keys_in_order: Sequence[str]


def _json_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    repeating = _Repeating(values)
    repeating.keys_in_order = [key for key, _ in pairs]
    return repeating


def _json_value(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_json_object)


def _json_row(number: int, line: str) -> Any:
    """Return the value in a line of a file, whose number an error names."""
    try:
        return _json_value(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None


class _Joined(io.RawIOBase):
    """Bytes that were read from a file, and then the rest of the file."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or its beginning, and return the number of bytes; 0 at the end."""
        content = self._head.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def _csv_texts(
    file: BinaryIO, data: DataConfig, options: Any, separator: str = ","
) -> Iterator[str]:
    import pandas as pd

    # Every cell is text: pandas would read NA and null as missing values, and digits as numbers.
    as_text = {"dtype": str, "na_filter": False, "chunksize": ROWS}
    # The separator of .tsv, as `datasets` and pandas' users write it.
    layout = options.pd_read_csv_kwargs if options else {"sep": separator}
    if options is None:
        # pandas renames the second of two equal names. A card may give names of its own.
        first_row = {"dtype": str, "na_filter": False, "header": None, "nrows": 1}
        head = file.read(HEAD_BYTES)
        with suppress(pd.errors.EmptyDataError):
            _check_column(data, pd.read_csv(io.BytesIO(head), **layout | first_row).iloc[0])
        # A stream of zstd cannot be read from its start again.
        file = io.BufferedReader(_Joined(head, file))
    with pd.read_csv(file, **layout | as_text) as tables:
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
    "feather": _arrow_texts,
    "json": _json_texts,
    "jsonl": _json_texts,
    "ndjson": _json_texts,
    "csv": _csv_texts,
    "tsv": functools.partial(_csv_texts, separator="\t"),
    "txt": _plain_texts,
}


def _check_column(data: DataConfig, columns: Iterable[Any]) -> None:
    """Refuse a table that has no column of texts, or two."""
    names = list(columns)
    if data.text_column not in names:
        reason = f"is no column; there are {show(', '.join(names))}"
        raise ConfigError("data.text_column", data.text_column, reason)
    if names.count(data.text_column) > 1:
        raise ConfigError("data.text_column", data.text_column, "names two columns; rename one")
