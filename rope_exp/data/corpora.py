"""Corpora from files, folders and datasets of the hub, read by `datasets`.

Only its readers for Parquet, JSON, CSV and text are used; none runs a dataset's code. Local Parquet
files are read by pyarrow, whose memory grows less (docs/decisions/020).
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import TRAIN, VALIDATION, Corpus
from rope_exp.system.errors import ConfigError, DataError, first_line, show
from rope_exp.system.files import json_sha256

READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".txt": "text"}
# Documents can be long, so only a few are read at once.
ROWS = 64


def open_dataset(data: DataConfig) -> Corpus:
    """Open the corpus of data=files or data=hub.

    Raises:
        ConfigError: data.path, data.subset, data.revision or data.text_column cannot be read.
        DataError: the hub did not answer.
    """
    with explaining(data):
        builder = _local_builder(data) if data.kind == "files" else _hub_builder(data)
        reader = type(builder).__module__.rpartition(".")[2]
        if reader not in READERS.values():
            raise path_error(data, f"is for the reader {reader}; there are {_names()}")
        if reader == "text" and data.sample_by is not None:
            builder.config.sample_by = data.sample_by

        streams = _choose_sides(data, builder.as_streaming_dataset())
        read = functools.partial(_rows, data=data)
        if data.kind == "hub":
            facts = {"path": data.path, "subset": data.subset, "revision": data.revision}
            return Corpus(data, streams, read, facts=facts)

        files = _choose_sides(data, builder.config.data_files)
        paths = map(Path, itertools.chain.from_iterable(files.values()))
        num_bytes = sum(path.stat().st_size for path in paths)
        if reader == "parquet":
            streams = files
            read = functools.partial(_parquet_texts, data=data)
        return Corpus(data, streams, read, num_bytes, {"path": data.path})


def files_fingerprint(data: DataConfig) -> str:
    """Return a digest of `list_files`; contents are not read."""
    return json_sha256(list_files(data))


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
        # datasets reads the first row of a JSON file, which an empty file lacks.
        said = "it is empty" if isinstance(error, StopIteration) else first_line(error)
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
        raise path_error(data, "there is no such file or folder")
    # datasets resolves links to a folder when it names the folder's files.
    return path.resolve() if path.is_dir() else path


def _files(root: Path) -> Iterator[Path]:
    """Yield the files at or below a path, except hidden ones, which datasets skips."""
    for path in [root] if root.is_file() else sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part.startswith((".", "__")) for part in parts):
            yield path


def _local_builder(data: DataConfig) -> Any:
    """Let datasets find the reader and the splits of a file or folder."""
    root = _root(data)
    if re.search(r"[*?\[\]]", str(root)):
        raise path_error(data, "may not hold any of * ? [ ], which mean patterns")

    load = load_datasets().load_dataset_builder
    if root.is_dir():
        builder = load(str(root), data.subset)
        _refuse_left_out(data, root, builder.config.data_files)
        return builder
    if data.subset is not None:
        allowed = "is for a folder with a dataset card, or the hub; data.path is a file"
        raise ConfigError("data.subset", data.subset, allowed)
    reader = _reader(root)
    if reader is None:
        raise path_error(data, f"is no file that ends in {_names()}")
    return load(reader, data_files={TRAIN: str(root)})


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

    # Otherwise the first batch would import torch.
    datasets.config.TORCH_AVAILABLE = False
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


def _refuse_left_out(data: DataConfig, root: Path, splits: Mapping[Any, Iterable[str]]) -> None:
    """Refuse a folder that datasets would silently read only in part.

    datasets reads only the most common format and, if some file names contain a split, only those
    files. A README.md may list the intended files, so a folder with one is accepted as it is.
    """
    for path in root.rglob("*"):
        if path.is_symlink() and path.is_dir():
            reason = "is a link to a folder, which would be left out; link its files"
            raise path_error(data, reason, str(path))
    listed = {path for paths in splits.values() for path in paths}
    left = [path for path in _files(root) if _reader(path) and str(path) not in listed]
    if left and not (root / "README.md").exists():
        names = ", ".join(map(str, splits))
        reason = f"would be left out beside the files of {names}; move it, or name it for a split"
        raise path_error(data, reason, str(left[0]))


def _choose_sides(data: DataConfig, splits: Mapping[Any, Any]) -> dict[str, Any]:
    """Choose the splits to train and to validate on; others, such as test, are never read."""
    if TRAIN not in splits:
        names = ", ".join(sorted(map(str, splits)))
        raise path_error(data, f"has no split named train; it has {names}")

    sides = {TRAIN: splits[TRAIN]}
    if data.validation_split in splits:
        sides[VALIDATION] = splits[data.validation_split]
    return sides


def _rows(stream: Any, data: DataConfig) -> Iterator[str]:
    """Yield the texts of a `datasets` stream."""
    with explaining(data):
        # A column of mixed types is declared "Json" and arrives as strings of JSON.
        kind = (stream.features or {}).get(data.text_column)
        if "Json" in str(kind):
            raise _no_text(data, kind)
        for table in stream.with_format("arrow").iter(batch_size=ROWS):
            yield from _texts(table, data)


def _parquet_texts(paths: Iterable[str], data: DataConfig) -> Iterator[str]:
    """Yield the texts of local Parquet files."""
    from pyarrow.parquet import ParquetFile

    for path in paths:
        with explaining(data, path), ParquetFile(path) as file:
            _check_column(data, file.schema_arrow.names)
            for batch in file.iter_batches(ROWS, columns=[data.text_column]):
                yield from _texts(batch, data)


def _texts(table: Any, data: DataConfig) -> Iterator[str]:
    """Yield the text column of an Arrow table, without empty rows."""
    import pyarrow

    _check_column(data, table.schema.names)
    column = table.column(data.text_column)
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        # pandas' categories store texts as numbers.
        kind = kind.value_type
    if kind not in (pyarrow.string(), pyarrow.large_string(), pyarrow.null()):
        raise _no_text(data, column.type)
    yield from filter(None, column.to_pylist())


def _check_column(data: DataConfig, names: list[str]) -> None:
    if data.text_column not in names:
        found = show(", ".join(names))
        raise ConfigError("data.text_column", data.text_column, f"is no column; there are {found}")


def _no_text(data: DataConfig, kind: object) -> ConfigError:
    return ConfigError("data.text_column", data.text_column, f"holds {kind}, not text")
