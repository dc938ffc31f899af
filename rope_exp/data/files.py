"""Local corpora: a file or folder of Parquet, JSON or text, as documents.

Whoever made the files is not trusted: none leads out of its folder, none is unpacked without bound, and whatever cannot
be read as what its name says ends in one sentence. Nothing here can run code: no pickle, no loading script.
"""

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import (
    ROWS,
    TRAIN,
    VALIDATION,
    Corpus,
    check_column,
    choose_sides,
    load_datasets,
    stream_texts,
    texts,
)
from rope_exp.data.tokenizer import PIECE_CHARS, pieces
from rope_exp.system.errors import ConfigError, first_line

LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
MAX_DOCUMENT = 256 << 20  # characters; a document is held in memory, and one is a hundred books
MAX_WORD = (
    16 << 20
)  # characters without a space or newline, which are encoded at once and take some 140 bytes each
# A bomb is small and unpacks to what fills memory or disk. Text packs 2 to 10 times, copies of one page some 50 times,
# and zeros 1000 times and more; what stays below SUSPECT_BYTES does no harm, however it was packed.
MAX_RATIO = 200
SUSPECT_BYTES = 64 << 20
# A dictionary in Parquet lets a long text stand in any number of rows for a few bits each. Writers give dictionaries up
# at about a MiB, so that in real files few rows share a text; a copy of all rows is allowed for, and more.
MAX_COPIES = 16
BATCH_BYTES = (
    512 << 20
)  # of text in one batch of rows from Parquet, whichever texts of a dictionary they name
MAX_NESTING = 500  # of JSON
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')  # of JSON
STEPS = np.array(
    [(chr(byte) in "[{") - (chr(byte) in "]}") for byte in range(256)]
)  # of nesting, by a byte
MAX_ROWS_A_BYTE = 1000  # of a Parquet file beyond its first million rows; empty ones take some bits


def local_files(data: DataConfig) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and the usable files, by path.

    Raises:
        ConfigError: there are none, or of several kinds.
    """
    assert data.path is not None
    root = Path(data.path).expanduser()
    try:
        if not root.exists():
            raise ConfigError("data.path", data.path, "there is no such file or folder")
        found = [root] if root.is_file() else sorted(root.rglob("*"))
        files = [path for path in found if _is_read(path, root, data)]
    except OSError as error:
        raise ConfigError("data.path", data.path, f"cannot be read: {error.strerror}") from None
    loaders = {loader for path in files if (loader := _loader(path))}
    if not loaders:
        raise ConfigError(
            "data.path",
            data.path,
            f"holds no file that ends in {', '.join(LOADERS)} (or .gz after it)",
        )
    if len(loaders) > 1:
        raise ConfigError(
            "data.path", data.path, f"holds {' and '.join(sorted(loaders))} files; choose one kind"
        )
    return (root.parent if root.is_file() else root), files


def _is_read(path: Path, root: Path, data: DataConfig) -> bool:
    """Whether a path at or below `root` is a file of the corpus.

    data.path itself may be a link: that is the user's own choice of a place. A link inside the folder is its maker's:
    one that leads out of it could put any file of the machine into the corpus, and one that is passed over, such as to
    a folder (which the search does not enter), would quietly leave text out. Both are refused.
    """
    if any(part.startswith((".", "__")) for part in path.relative_to(root).parts):
        return False
    if path.is_symlink() and path != root and (_loader(path) or path.is_dir()):
        target = Path(os.path.realpath(path))
        if not (target.is_relative_to(os.path.realpath(root)) and target.is_file()):
            raise ConfigError(
                "data.path",
                str(path),
                "is a link that leads to no file of this folder; put a copy there",
            )
    if path != root and not (_loader(path) and path.is_file()):
        return False
    if "::" in os.path.abspath(
        path
    ):  # to the library that opens files, a path inside an archive or of another place
        raise ConfigError("data.path", str(path), "a name may not hold ::")
    return True


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
        raise ConfigError(
            "data.sample_by",
            None,
            "must be document, paragraph or line where the files are plain text",
        )
    if loader == "parquet":
        text_bytes = sum(_parquet_text_bytes(path, data) for path in all_read)
    else:
        text_bytes = sum(_text_bytes(path, data) for path in all_read)

    def reader(paths: list[Path]) -> Callable[[], Iterator[str]]:
        return lambda: (
            _parquet_texts(paths, data) if loader == "parquet" else _file_texts(loader, paths, data)
        )

    facts = {"path": data.path, "validation": "its own" if VALIDATION in splits else "held out"}
    return Corpus(
        {side: reader(paths) for side, paths in splits.items()},
        data.holdout_fraction,
        text_bytes,
        facts,
    )


def within_limits(texts: Iterable[str], data: DataConfig) -> Iterator[str]:
    """The same documents, whatever their origin.

    Raises:
        ConfigError: one is too long to be held and encoded.
    """
    for text in texts:
        if len(text) > MAX_DOCUMENT:
            raise _too_long(data.path, len(text))
        if (
            len(text) > MAX_WORD
            and (longest := max(map(len, pieces(text, PIECE_CHARS)))) > MAX_WORD
        ):
            raise ConfigError(
                "data.path",
                data.path,
                f"holds {longest:,} characters on end without a space or newline",
            )
        yield text


def _too_long(path: str | None, length: int) -> ConfigError:
    hint = "cut it into shorter ones (data.sample_by=line where it is plain text)"
    return ConfigError(
        "data.path", path, f"holds a document of {length:,} characters or more; {hint}"
    )


def _local_splits(data: DataConfig, files: list[Path]) -> dict[str, list[Path]]:
    """The files of each side, by datasets' own rule for names (train-00000.parquet, validation.jsonl, test/...)."""
    if files == [Path(str(data.path)).expanduser()]:
        return {TRAIN: files}
    load_datasets()
    from datasets.data_files import DataFilesDict, get_data_patterns

    root = os.path.abspath(os.path.expanduser(str(data.path)))
    if re.search(r"[*?\[\]]", root):
        raise ConfigError(
            "data.path",
            data.path,
            "a folder's name may not hold any of * ? [ ], which mean patterns",
        )
    usable = {os.path.abspath(path): path for path in files}
    try:
        found = DataFilesDict.from_patterns(get_data_patterns(root), base_path=root)
    except Exception as error:
        raise ConfigError(
            "data.path", data.path, f"its files cannot be listed: {first_line(error)}"
        ) from None
    splits = {
        str(name): [usable[path] for path in sorted(set(paths) & usable.keys())]
        for name, paths in found.items()
    }
    splits = {name: paths for name, paths in splits.items() if paths}
    return choose_sides(data, splits)


def _text_bytes(path: Path, data: DataConfig) -> int:
    """Bytes of a JSON or text file once decompressed. JSON, and what is compressed, is read through for that.

    Raises:
        ConfigError: it cannot be read so, unpacks without bound, or holds what no reader is asked to stand.
    """
    import pyarrow

    loader, size = _loader(path), path.stat().st_size
    if loader == "json" or path.suffix in COMPRESSED:
        num_bytes = depth = 0
        try:
            with (
                pyarrow.input_stream(
                    str(path), compression=COMPRESSED.get(path.suffix)
                ) as unpacked,
                io.BufferedReader(unpacked, 1 << 20) as file,
            ):
                while lines := file.read(1 << 20):
                    lines += file.readline(MAX_DOCUMENT)
                    num_bytes += len(lines)
                    if path.suffix in COMPRESSED and num_bytes > max(
                        SUSPECT_BYTES, MAX_RATIO * size
                    ):
                        raise ConfigError(
                            "data.path", str(path), f"unpacks to over {MAX_RATIO} times its size"
                        )
                    if len(lines) > MAX_DOCUMENT:
                        raise _too_long(str(path), len(lines))
                    deepest, depth = _nesting(lines, depth) if loader == "json" else (0, 0)
                    if (
                        deepest > MAX_NESTING
                    ):  # Arrow's reader would overflow the stack, which ends the process
                        raise ConfigError(
                            "data.path", str(path), f"holds JSON nested over {MAX_NESTING} deep"
                        )
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError(
                "data.path", str(path), f"cannot be read as {loader}: {first_line(error)}"
            ) from None
    else:
        num_bytes = size
    if loader == "text" and data.sample_by == "document" and num_bytes > MAX_DOCUMENT:
        raise _too_long(str(path), num_bytes)
    return num_bytes


def _nesting(lines: bytes, depth: int) -> tuple[int, int]:
    """How deep lines of JSON nest at most, and at their end, where they begin at `depth`."""
    symbols = np.frombuffer(STRING.sub(b"", lines), dtype=np.uint8)
    depths = depth + np.cumsum(STEPS[symbols])
    return int(depths.max(initial=depth)), int(depths[-1]) if len(depths) else depth


def _parquet_text_bytes(path: Path, data: DataConfig) -> int:
    """Bytes of the text column once decompressed, from the file's footer.

    Raises:
        ConfigError: the file is no Parquet file, has no such column, or claims what cannot be.
    """
    with _open_parquet(path) as file:
        check_column(data, file.schema_arrow.names)
        chunks = _chunks(file, path, data)
        longest = max((_dictionary_bytes(path, chunk) for chunk in chunks), default=0)
    if longest > 8 << 20:  # more than writers commonly allow it
        for _ in _parquet_texts(
            [path], data
        ):  # to see before anything is encoded that it is no bomb
            pass
    return sum(chunk.total_uncompressed_size for chunk in chunks)


def _chunks(file: Any, path: Path, data: DataConfig) -> list[Any]:
    """The footer's description of the text column in each row group, checked."""
    footer, size = file.metadata, path.stat().st_size
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    column = next(
        index for index, name in enumerate(paths) if name.split(".")[0] == data.text_column
    )
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    chunks = [group.column(column) for group in groups]
    rows = [footer.num_rows, *(group.num_rows for group in groups)]
    if min(rows) < 0 or sum(rows[1:]) != rows[0] or rows[0] > 1_000_000 + MAX_ROWS_A_BYTE * size:
        raise ConfigError("data.path", str(path), f"claims {rows[0]:,} rows in {size:,} bytes")
    for chunk in chunks:
        packed, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
        if not 0 <= packed <= size or not 0 <= unpacked <= max(SUSPECT_BYTES, MAX_RATIO * packed):
            raise ConfigError(
                "data.path", str(path), f"claims {unpacked:,} bytes of text in {packed:,}"
            )
    return chunks


def _parquet_texts(paths: list[Path], data: DataConfig) -> Iterator[str]:
    """Read Parquet by pyarrow itself: datasets' streaming decodes ahead of a slow reader, and memory grows."""
    for path in paths:
        with _open_parquet(path) as file:
            chunks = _chunks(file, path, data)
            limit = max(
                SUSPECT_BYTES, MAX_COPIES * sum(chunk.total_uncompressed_size for chunk in chunks)
            )
            longest = max((_dictionary_bytes(path, chunk) for chunk in chunks), default=0)
            rows = max(1, min(ROWS, BATCH_BYTES // max(longest, 1)))
            for text in texts(file.iter_batches(rows, columns=[data.text_column]), data):
                limit -= len(text)
                if limit < 0:
                    raise ConfigError(
                        "data.path", str(path), f"repeats its text over {MAX_COPIES} times"
                    )
                yield text


def _dictionary_bytes(path: Path, chunk: Any) -> int:
    """How long a text of a chunk's dictionary can be: the page's size, from the header that stands before it.

    The header is a Thrift struct whose first two fields are the page's type and its size, each a byte and a number of
    7 bits a byte, the lowest first, doubled.
    """
    if not chunk.has_dictionary_page:
        return 0
    with path.open("rb") as file:
        file.seek(chunk.dictionary_page_offset)
        header = iter(file.read(24))
    number = 0
    for _ in range(2):
        next(header, 0)
        number = shift = 0
        for byte in header:
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
    return number >> 1


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """Open one file; whatever goes wrong with it, then or later, is said in one sentence."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except ConfigError:
        raise
    except Exception as error:  # pyarrow raises a dozen kinds for harmed files, MemoryError for absurd sizes among them
        raise ConfigError(
            "data.path", str(path), f"cannot be read as Parquet: {first_line(error)}"
        ) from None


def _file_texts(loader: str | None, paths: list[Path], data: DataConfig) -> Iterator[str]:
    """Read JSON or text files by datasets."""
    try:
        yield from stream_texts(_load_files(loader, paths, data), data)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        raise _blame(loader, paths, data, error) from None


def _load_files(loader: str | None, paths: Iterable[Path], data: DataConfig) -> Any:
    names = [
        re.sub(r"([*?\[])", r"[\1]", os.path.abspath(path)) for path in paths
    ]  # names, not patterns
    options = {"sample_by": data.sample_by} if loader == "text" else {}
    return load_datasets().load_dataset(
        loader, data_files={TRAIN: names}, split=TRAIN, streaming=True, **options
    )


def _blame(
    loader: str | None, paths: list[Path], data: DataConfig, error: Exception
) -> ConfigError:
    """The error of the first file that cannot be read by itself: datasets does not say which it was."""
    for path in paths:
        try:
            for _ in stream_texts(_load_files(loader, [path], data), data):
                pass
        except Exception as found:
            what = (
                "is not UTF-8 text"
                if isinstance(found, UnicodeDecodeError)
                else f"cannot be read as {loader}"
            )
            return ConfigError("data.path", str(path), f"{what}: {first_line(found)}")
    return ConfigError(
        "data.path", data.path, f"its files cannot be read as one corpus: {first_line(error)}"
    )
