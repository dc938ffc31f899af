"""Local corpora: a file or folder of Parquet, JSON or text, as documents."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rope_exp.config import DataConfig
from rope_exp.data.documents import (
    ROWS,
    TRAIN,
    VALIDATION,
    Corpus,
    check_column,
    choose_sides,
    first_line,
    load_datasets,
    stream_texts,
    texts,
)
from rope_exp.schema import ConfigError

LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
COMPRESSED = (".gz", ".zst")
COMPRESSION = 4  # text bytes a byte of a compressed file, on the safe side


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


def open_files(data: DataConfig) -> Corpus:
    """The streams of data=files.

    Raises:
        ConfigError: data.path, data.text_column or data.sample_by cannot be.
    """
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
    load_datasets()
    from datasets.data_files import DataFilesDict, get_data_patterns

    root = os.path.abspath(os.path.expanduser(str(data.path)))
    if re.search(r"[*?\[\]]", root):
        raise ConfigError("data.path", data.path, "a folder's name may not hold any of * ? [ ], which mean patterns")
    usable = {os.path.abspath(path): path for path in files}
    found = DataFilesDict.from_patterns(get_data_patterns(root), base_path=root)
    splits = {str(name): [usable[path] for path in sorted(set(paths) & usable.keys())] for name, paths in found.items()}
    splits = {name: paths for name, paths in splits.items() if paths}
    return choose_sides(data, splits)


def _parquet_text_bytes(path: Path, data: DataConfig) -> int:
    """Bytes of the text column once decompressed, from the file's footer.

    Raises:
        ConfigError: the file is no Parquet file, or has no such column.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_column(data, file.schema_arrow.names)
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
                yield from texts(file.iter_batches(ROWS, columns=[data.text_column]), data)
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError("data.path", str(path), f"cannot be read as Parquet: {first_line(error)}") from None


def _file_texts(loader: str | None, paths: list[Path], data: DataConfig) -> Iterator[str]:
    """Read JSON or text files by datasets."""
    try:
        yield from stream_texts(_load_files(loader, paths, data), data)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        raise _blame(loader, paths, data, error) from None


def _load_files(loader: str | None, paths: Iterable[Path], data: DataConfig) -> Any:
    names = [re.sub(r"([*?\[])", r"[\1]", os.path.abspath(path)) for path in paths]  # names, not patterns
    options = {"sample_by": data.sample_by} if loader == "text" else {}
    return load_datasets().load_dataset(loader, data_files={TRAIN: names}, split=TRAIN, streaming=True, **options)


def _blame(loader: str | None, paths: list[Path], data: DataConfig, error: Exception) -> ConfigError:
    """The error of the first file that cannot be read by itself: datasets does not say which it was."""
    for path in paths:
        try:
            for _ in stream_texts(_load_files(loader, [path], data), data):
                pass
        except Exception as found:
            what = "is not UTF-8 text" if isinstance(found, UnicodeDecodeError) else f"cannot be read as {loader}"
            return ConfigError("data.path", str(path), f"{what}: {first_line(found)}")
    return ConfigError("data.path", data.path, f"its files cannot be read as one corpus: {first_line(error)}")
