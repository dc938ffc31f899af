"""Local corpora: a file or folder of Parquet, JSON or text, as documents.

Whoever made the files is not trusted: none leads out of its folder, none is unpacked without
bound, and whatever cannot be read as what its name says ends in one sentence. Nothing here can
run code: no pickle, no loading script.
"""

import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import (
    MAX_DOCUMENT,
    TRAIN,
    Corpus,
    check_column,
    check_expansion,
    check_length,
    choose_sides,
    load_datasets,
    no_text,
    path_error,
)
from rope_exp.data.parquet import parquet_texts
from rope_exp.system.errors import ConfigError, first_line
from rope_exp.system.files import json_sha256

FORMATS = {".parquet": "Parquet", ".jsonl": "JSON", ".json": "JSON", ".txt": "text"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def local_files(data: DataConfig) -> list[Path]:
    """Find the files of the corpus, by absolute path.

    Raises:
        ConfigError: there are none, or of several formats.
    """
    root = _root(data)
    try:
        if not root.exists():
            raise path_error(data.path, "there is no such file or folder")
        found = [root] if root.is_file() else sorted(root.rglob("*"))
        files = [path for path in found if _belongs(path, root)]
    except OSError as error:
        raise path_error(data.path, f"cannot be read: {error.strerror}") from None

    if not files:
        ends = ", ".join(FORMATS)
        raise path_error(data.path, f"holds no file that ends in {ends} (or .gz or .zst after it)")
    formats = {str(_format(path)) for path in files}
    if len(formats) > 1:
        names = " and ".join(sorted(formats))
        raise path_error(data.path, f"holds {names} files; choose one kind")
    return files


def files_fingerprint(data: DataConfig) -> str:
    """Return a digest of each file's name, size and time; their content is not read."""
    files = local_files(data)
    root = _root(data)
    folder = root.parent if root.is_file() else root

    states = []
    for path in files:
        state = path.stat()
        states.append([str(path.relative_to(folder)), state.st_size, state.st_mtime_ns])
    return json_sha256(states)


def open_files(data: DataConfig) -> Corpus:
    """Open the corpus of data=files, and read every file once.

    Reading shows how much text there is, and that no file is a bomb, is cut off or is no text,
    before hours of work depend on it.

    Raises:
        ConfigError: data.path, data.text_column or data.sample_by cannot be.
    """
    splits = choose_sides(data, _splits(data))
    read = partial(_texts, data=data)

    text_bytes = 0
    for paths in splits.values():
        text_bytes += sum(len(text.encode()) for text in read(paths))
    return Corpus(data, splits, read, text_bytes, {"path": data.path})


def _root(data: DataConfig) -> Path:
    return Path(os.path.abspath(os.path.expanduser(str(data.path))))


def _belongs(path: Path, root: Path) -> bool:
    """Whether a path at or below `root` is a file of the corpus.

    data.path itself may be a link: that is the user's own choice of a place. A link inside the
    folder is its maker's: one that leads out of it could put any file of the machine into the
    corpus, and one that is passed over, such as to a folder (which the search does not enter),
    would quietly leave text out. Both are refused.
    """
    if any(part.startswith((".", "__")) for part in path.relative_to(root).parts):
        return False

    if path != root and path.is_symlink() and (_format(path) or path.is_dir()):
        target = Path(os.path.realpath(path))
        if not (target.is_relative_to(os.path.realpath(root)) and target.is_file()):
            reason = "is a link that leads to no file of this folder; put a copy there"
            raise path_error(path, reason)
    if not (_format(path) and path.is_file()):
        return False

    # To the library that lists files, this means a path inside an archive or of another place.
    if "::" in str(path):
        raise path_error(path, "a name may not hold ::")
    return True


def _format(path: Path) -> str | None:
    name = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return FORMATS.get(name.suffix)


def _splits(data: DataConfig) -> dict[str, list[Path]]:
    """Find the files of each side, by datasets' rule for names (train-00000.parquet, test/...)."""
    files = local_files(data)
    root = str(_root(data))
    names = {str(path) for path in files}
    if root in names:
        return {TRAIN: files}

    load_datasets()
    from datasets.data_files import DataFilesDict, get_data_patterns

    if re.search(r"[*?\[\]]", root):
        reason = "a folder's name may not hold any of * ? [ ], which mean patterns"
        raise path_error(data.path, reason)
    try:
        found = DataFilesDict.from_patterns(get_data_patterns(root), base_path=root)
    except Exception as error:
        raise path_error(data.path, f"its files cannot be listed: {first_line(error)}") from None

    splits = {}
    for split, listed in found.items():
        paths = [Path(name) for name in sorted(names & set(listed))]
        if paths:
            splits[str(split)] = paths

    # To leave them out in silence would be to train on less text than is there.
    placed = {str(path) for paths in splits.values() for path in paths}
    if left := sorted(names - placed):
        raise path_error(
            data.path,
            f"holds files of no split, such as {os.path.relpath(left[0], root)}, beside those of "
            f"{', '.join(sorted(splits))}; move them out, or into folders train and validation",
        )
    return splits


def _texts(paths: Iterable[Path], data: DataConfig) -> Iterator[str]:
    """Yield the documents of some files, and say in one sentence whatever goes wrong with one.

    The libraries raise a dozen kinds for harmed files, MemoryError for absurd sizes among them.
    """
    for path in paths:
        kind = str(_format(path))
        try:
            yield from READERS[kind](path, data)
        except ConfigError:
            raise
        except UnicodeError as error:
            raise path_error(path, f"is not UTF-8 text: {error}") from None
        except Exception as error:
            raise path_error(path, f"cannot be read as {kind}: {first_line(error)}") from None


def _unpack(path: Path, encoding: str, *, whole: bool = False) -> Iterator[str]:
    """Yield the lines of a JSON or text file; all of it at once if `whole`.

    Raises:
        ConfigError: it unpacks without bound, or what would be held at once is too long.
    """
    import pyarrow

    size = path.stat().st_size
    num_chars = 0

    with (
        path.open("rb") as packed,
        pyarrow.input_stream(packed, COMPRESSIONS.get(path.suffix)) as unpacked,
        io.BufferedReader(unpacked, 1 << 20) as buffer,
        io.TextIOWrapper(buffer, encoding) as file,
    ):
        read = file.read if whole else file.readline
        while text := read(MAX_DOCUMENT + 1):
            num_chars += len(text)
            check_expansion(path, size, num_chars)
            check_length(path, len(text))
            yield text


def _text_texts(path: Path, data: DataConfig) -> Iterator[str]:
    """Yield the documents of a text file, as data.sample_by cuts it."""
    if data.sample_by == "document":
        yield from _unpack(path, "utf-8", whole=True)
    elif data.sample_by == "line":
        for line in _unpack(path, "utf-8"):
            yield line.rstrip("\n")
    elif data.sample_by == "paragraph":
        yield from _paragraphs(_unpack(path, "utf-8"), path)
    else:
        allowed = "must be document, paragraph or line where the files are plain text"
        raise ConfigError("data.sample_by", None, allowed)


def _paragraphs(lines: Iterable[str], path: Path) -> Iterator[str]:
    """Put lines together to what stands between empty ones."""
    paragraph = ""
    for line in lines:
        paragraph += line
        check_length(path, len(paragraph))
        if paragraph.endswith("\n\n"):
            yield paragraph[:-2]
            paragraph = ""
    yield paragraph


def _json_texts(path: Path, data: DataConfig) -> Iterator[str]:
    """Yield the texts of a JSON file; rows without text are left out.

    Rows are objects, or texts themselves: one a line, or those of one value that takes all lines.

    Raises:
        ConfigError: no row has the key data.text_column, or it holds no text.
    """
    key = str(data.text_column)
    keys: list[str] = []
    try:
        json.loads(next(filter(str.strip, _unpack(path, "utf-8-sig")), "null"))
        whole = False
    except ValueError:
        whole = True

    for number, content in enumerate(_unpack(path, "utf-8-sig", whole=whole)):
        value = _json(content, path, num_lines_before=number)
        for row in value if isinstance(value, list) else [value]:
            if isinstance(row, str):
                row = {key: row}
            if not isinstance(row, dict):
                raise path_error(path, "holds JSON that is no object a line")
            if key not in keys:
                keys = list(row)

            text = row.get(key, "")
            if not isinstance(text, str | None):
                raise no_text(data, type(text).__name__)
            if text:
                # Half a surrogate pair, which JSON can spell, is no text: it raises.
                text.encode()
                yield text

    if keys:
        check_column(data, keys)


def _json(content: str, path: Path, num_lines_before: int) -> Any:
    """Return the value that some lines of a file spell; no rows where they are empty.

    Raises:
        ConfigError: it is no JSON, from some line on.
    """
    try:
        return json.loads(content.rstrip() or "[]")
    except json.JSONDecodeError as error:
        line = num_lines_before + error.lineno
        reason = f"cannot be read as JSON: line {line}, column {error.colno}: {error.msg}"
        raise path_error(path, reason) from None


READERS = {
    "Parquet": parquet_texts,
    "JSON": _json_texts,
    "text": _text_texts,
}
