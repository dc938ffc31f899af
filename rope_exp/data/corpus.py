"""Where documents come from: Python's own library, files of the user's, or a dataset of the hub.

A corpus is one or two streams of documents. Where it has no validation split of its own, documents are held out by a
hash of their text, so that equal documents never stand on both sides. All is read as a stream, so that memory does not
grow with the corpus. `datasets` and pyarrow are imported only when a corpus is really read, and without torch.
"""

import hashlib
import json
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_exp.config import DataConfig
from rope_exp.schema import ConfigError

TRAIN, VALIDATION = "train", "validation"
LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
COMPRESSED = (".gz", ".zst")
ROWS = 64  # of one read; documents can be long
COMPRESSION = 4  # text bytes a byte of a compressed file, on the safe side
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


class DataError(RuntimeError):
    """The corpus or tokenizer cannot be had, through no fault of the config (the network, a file that changes)."""


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
            yield (VALIDATION if not own and is_held_out(text, self.holdout_fraction) else split), text

    def train_texts(self) -> Iterator[str]:
        """The training documents alone, for a tokenizer to learn from."""
        return (text for side, text in self.documents(TRAIN) if side == TRAIN)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to validation: a hash of its text, as a number in [0, 1), is below `fraction`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) < fraction * 2**64


def corpus_fingerprint(data: DataConfig) -> str:
    """Sixty-four hexadecimal digits that change with the corpus: cheap, no network.

    Equation: sha256 of (path, contents) of each file of the library; of (path, size, modification time) of each local
    file; of path, subset and revision of a dataset of the hub.

    Raises:
        ConfigError: data.path is missing or holds no file that could be read.
    """
    if data.kind == "hub":
        return _sha256([data.path, data.subset, data.revision])
    if data.kind == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        return _sha256([[str(path.relative_to(root)), _sha256_file(path)] for path in library_files(root)])
    root, files = local_files(data)
    states = [(str(path.relative_to(root)), path.stat()) for path in files]
    return _sha256([[name, state.st_size, state.st_mtime_ns] for name, state in states])


def open_corpus(data: DataConfig) -> Corpus:
    """Find the streams of a config.

    Raises:
        ConfigError: data.path, data.text_column or data.validation_split cannot be. DataError: the hub did not answer.
    """
    if data.kind == "stdlib":
        return _library(data)
    if data.validation_split == TRAIN:
        raise ConfigError("data.validation_split", TRAIN, "is what is trained on; name another split, or null")
    return _local(data) if data.kind == "files" else _hub(data)


# -- Python's own library ----------------------------------------------------------------------------------------------


def library_files(root: Path) -> list[Path]:
    """The library's modules, without tests, installed packages and files that Python's build wrote, by path."""

    def belongs(path: Path) -> bool:
        parts = path.relative_to(root).parts
        machine_made = parts[0].startswith("config-") or path.name.startswith("_sysconfigdata")
        return not machine_made and NOT_LIBRARY.isdisjoint(parts)

    return sorted(path for path in root.rglob("*.py") if belongs(path))


def _library(data: DataConfig) -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    files = library_files(root)
    facts: dict[str, Any] = {"python": sys.version.split()[0]}

    def read() -> Iterator[str]:
        facts["files_not_decoded"] = 0
        for path in files:
            try:
                with tokenize.open(path) as file:
                    text = file.read()
            except (SyntaxError, UnicodeDecodeError):  # a module that declares no encoding, or a wrong one
                facts["files_not_decoded"] += 1
                continue
            yield text

    return Corpus({TRAIN: read}, data.holdout_fraction, sum(path.stat().st_size for path in files), facts)


# -- files -------------------------------------------------------------------------------------------------------------


def local_files(data: DataConfig) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the usable files, by path.

    Raises:
        ConfigError: there are none, or of several kinds.
    """
    assert data.path is not None
    root = Path(data.path).expanduser()
    if not root.exists():
        raise ConfigError("data.path", data.path, "there is no such file or folder")
    found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if _loader(path) and path.is_file())
    files = [path for path in found if not any(part.startswith((".", "__")) for part in path.relative_to(root).parts)]
    loaders = {loader for path in files if (loader := _loader(path))}
    if not loaders:
        raise ConfigError("data.path", data.path, f"holds no file that ends in {', '.join(LOADERS)} (or .gz after it)")
    if len(loaders) > 1:
        raise ConfigError("data.path", data.path, f"holds {' and '.join(sorted(loaders))} files; choose one kind")
    return (root.parent if root.is_file() else root), files


def _loader(path: Path) -> str | None:
    """Which of datasets' loaders reads a file."""
    name = path.with_suffix("") if path.suffix in COMPRESSED else path
    return LOADERS.get(name.suffix)


def _local(data: DataConfig) -> Corpus:
    _, files = local_files(data)
    splits = _local_splits(data, files)
    all_read = [path for paths in splits.values() for path in paths]
    loader = _loader(all_read[0])
    if loader == "text" and data.sample_by is None:
        raise ConfigError("data.sample_by", None, "must be document, paragraph or line where the files are plain text")
    if loader == "parquet":
        text_bytes = sum(_parquet_text_bytes(path, data) for path in all_read)
    else:
        text_bytes = sum(path.stat().st_size * (COMPRESSION if path.suffix in COMPRESSED else 1) for path in all_read)

    def reader(paths: list[Path]) -> Callable[[], Iterator[str]]:
        return lambda: _parquet_texts(paths, data) if loader == "parquet" else _file_texts(loader, paths, data)

    facts = {"path": data.path, "validation": "its own" if VALIDATION in splits else "held out"}
    return Corpus({side: reader(paths) for side, paths in splits.items()}, data.holdout_fraction, text_bytes, facts)


def _local_splits(data: DataConfig, files: list[Path]) -> dict[str, list[Path]]:
    """The files of each side, by datasets' own rule for names (train-00000.parquet, validation.jsonl, test/...)."""
    if files == [Path(str(data.path)).expanduser()]:
        return {TRAIN: files}
    _datasets()
    from datasets.data_files import DataFilesDict, get_data_patterns

    root = os.path.abspath(os.path.expanduser(str(data.path)))
    if re.search(r"[*?\[\]]", root):
        raise ConfigError("data.path", data.path, "a folder's name may not hold any of * ? [ ], which mean patterns")
    usable = {os.path.abspath(path): path for path in files}
    found = DataFilesDict.from_patterns(get_data_patterns(root), base_path=root)
    splits = {str(name): [usable[path] for path in sorted(set(paths) & usable.keys())] for name, paths in found.items()}
    splits = {name: paths for name, paths in splits.items() if paths}
    return _sides(data, splits)


def _sides(data: DataConfig, splits: Mapping[str, Any]) -> dict[str, Any]:
    """What to train on, and what to validate on where the corpus has it. Other splits (test) are never read."""
    if TRAIN not in splits:
        raise ConfigError("data.path", data.path, f"has no split named train; it has {', '.join(sorted(splits))}")
    sides = {TRAIN: splits[TRAIN]}
    if data.validation_split is not None and data.validation_split in splits:
        sides[VALIDATION] = splits[data.validation_split]
    return sides


def _parquet_text_bytes(path: Path, data: DataConfig) -> int:
    """Bytes of the text column once decompressed, from the file's footer.

    Raises:
        ConfigError: the file is no Parquet file, or has no such column.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_column(data, file.schema_arrow.names)
            footer = file.metadata
            paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
            column = next(index for index, name in enumerate(paths) if name.split(".")[0] == data.text_column)
            groups = (footer.row_group(index) for index in range(footer.num_row_groups))
            return sum(group.column(column).total_uncompressed_size for group in groups)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError("data.path", str(path), f"cannot be read as Parquet: {first_line(error)}") from None


def _parquet_texts(paths: list[Path], data: DataConfig) -> Iterator[str]:
    """Read Parquet by pyarrow itself: datasets' streaming decodes ahead of a slow reader, and memory grows."""
    import pyarrow
    import pyarrow.parquet

    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                yield from _texts(file.iter_batches(ROWS, columns=[data.text_column]), data)
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError("data.path", str(path), f"cannot be read as Parquet: {first_line(error)}") from None


def _file_texts(loader: str | None, paths: list[Path], data: DataConfig) -> Iterator[str]:
    """Read JSON or text files by datasets."""
    try:
        yield from _stream_texts(_load_files(loader, paths, data), data)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        raise _blame(loader, paths, data, error) from None


def _load_files(loader: str | None, paths: Iterable[Path], data: DataConfig) -> Any:
    names = [re.sub(r"([*?\[])", r"[\1]", os.path.abspath(path)) for path in paths]  # names, not patterns
    options = {"sample_by": data.sample_by} if loader == "text" else {}
    return _datasets().load_dataset(loader, data_files={TRAIN: names}, split=TRAIN, streaming=True, **options)


def _blame(loader: str | None, paths: list[Path], data: DataConfig, error: Exception) -> ConfigError:
    """The error of the first file that cannot be read by itself: datasets does not say which it was."""
    for path in paths:
        try:
            for _ in _stream_texts(_load_files(loader, [path], data), data):
                pass
        except Exception as found:
            what = "is not UTF-8 text" if isinstance(found, UnicodeDecodeError) else f"cannot be read as {loader}"
            return ConfigError("data.path", str(path), f"{what}: {first_line(found)}")
    return ConfigError("data.path", data.path, f"its files cannot be read as one corpus: {first_line(error)}")


# -- the hub -----------------------------------------------------------------------------------------------------------


def _hub(data: DataConfig) -> Corpus:
    try:
        streams = _datasets().load_dataset(data.path, data.subset, revision=data.revision, streaming=True)
    except Exception as error:
        raise DataError(f"data.path={data.path}: the dataset could not be opened: {first_line(error)}") from None
    sides = _sides(data, streams)

    def reader(stream: Any) -> Callable[[], Iterator[str]]:
        def read() -> Iterator[str]:
            try:
                yield from _stream_texts(stream, data)
            except (ConfigError, MemoryError):
                raise
            except Exception as error:
                raise DataError(f"data.path={data.path}: reading stopped: {first_line(error)}") from None

        return read

    facts = {
        "path": data.path,
        "subset": data.subset,
        "revision": data.revision,
        "validation": "its own" if VALIDATION in sides else "held out",
    }
    return Corpus({side: reader(stream) for side, stream in sides.items()}, data.holdout_fraction, None, facts)


def _datasets() -> Any:
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


def _stream_texts(stream: Any, data: DataConfig) -> Iterator[str]:
    # A column of mixed types is declared "Json" and arrives as strings of JSON, which are no documents.
    kind = (stream.features or {}).get(data.text_column)
    if "Json" in str(kind):
        raise ConfigError("data.text_column", data.text_column, f"holds {kind}, not text")
    return _texts(stream.with_format("arrow").iter(batch_size=ROWS), data)


def _texts(tables: Iterable[Any], data: DataConfig) -> Iterator[str]:
    """The text column of Arrow tables or batches; rows without text are left out.

    Raises:
        ConfigError: there is no such column, or it holds no text.
    """
    import pyarrow

    for table in tables:
        _check_column(data, table.schema.names)
        column = table.column(data.text_column)
        if column.type not in (pyarrow.string(), pyarrow.large_string(), pyarrow.null()):
            raise ConfigError("data.text_column", data.text_column, f"holds {column.type}, not text")
        yield from filter(None, column.to_pylist())


def _check_column(data: DataConfig, names: list[str]) -> None:
    if data.text_column not in names:
        raise ConfigError("data.text_column", data.text_column, f"is no column; there are {', '.join(names)}")


def first_line(error: BaseException) -> str:
    """An error's message in one line."""
    text = " ".join(str(error).split())
    return (text if len(text) <= 300 else text[:297] + "...") or type(error).__name__


def _sha256(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _sha256_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
