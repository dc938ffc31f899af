"""Where documents come from: Python's own library, files of the user's, or a dataset of the hub.

A corpus is one or two streams of documents. Where it has no validation split of its own, documents are held out by a
hash of their text, so that equal documents never stand on both sides. All is read as a stream, so that memory does not
grow with the corpus.
"""

import hashlib
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import (
    TRAIN,
    VALIDATION,
    Corpus,
    choose_sides,
    load_datasets,
    stream_texts,
)
from rope_exp.data.files import local_files, open_files
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import json_sha256

NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def corpus_fingerprint(data: DataConfig) -> str:
    """Sixty-four hexadecimal digits that change with the corpus: cheap, no network.

    Equation: sha256 of (path, contents) of each file of the library; of (path, size, modification time) of each local
    file; of path, subset and revision of a dataset of the hub.

    Raises:
        ConfigError: data.path is missing or holds no file that could be read.
    """
    if data.kind == "hub":
        return json_sha256([data.path, data.subset, data.revision])
    if data.kind == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        return json_sha256(
            [[str(path.relative_to(root)), _sha256_file(path)] for path in library_files(root)]
        )
    root, files = local_files(data)
    states = [(str(path.relative_to(root)), path.stat()) for path in files]
    return json_sha256([[name, state.st_size, state.st_mtime_ns] for name, state in states])


def open_corpus(data: DataConfig) -> Corpus:
    """Find the streams of a config.

    Raises:
        ConfigError: data.path, data.text_column or data.validation_split cannot be. DataError: the hub did not answer.
    """
    if data.kind == "stdlib":
        return _library(data)
    if data.validation_split == TRAIN:
        raise ConfigError(
            "data.validation_split", TRAIN, "is what is trained on; name another split, or null"
        )
    return open_files(data) if data.kind == "files" else _hub(data)


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
            except (
                SyntaxError,
                UnicodeDecodeError,
            ):  # a module that declares no encoding, or a wrong one
                facts["files_not_decoded"] += 1
                continue
            yield text

    return Corpus(
        {TRAIN: read}, data.holdout_fraction, sum(path.stat().st_size for path in files), facts
    )


# -- the hub -----------------------------------------------------------------------------------------------------------


def _hub(data: DataConfig) -> Corpus:
    datasets = load_datasets()
    from rope_exp.data.hub import Hub

    # Hints of another server's and a count of downloads: requests that are no part of the data, and could fail alone.
    datasets.config.USE_PARQUET_EXPORT = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    hub = Hub.connect(sys.stderr)
    asking = partial(hub.asking, "data.path", data.path)
    absent = (datasets.exceptions.DatasetNotFoundError, ValueError)  # ValueError: no such subset
    # Where the hub refuses, the library reads what it finds in its cache, of whatever revision: give it an empty one.
    with (
        asking("the dataset could not be opened", mistakes=absent),
        TemporaryDirectory(prefix="rope_exp-") as empty,
    ):
        streams = datasets.load_dataset(
            data.path, data.subset, revision=data.revision, streaming=True, cache_dir=empty
        )
    sides = choose_sides(data, streams)

    def reader(stream: Any) -> Callable[[], Iterator[str]]:
        def read() -> Iterator[str]:
            with asking("reading stopped", mistakes=()):
                for text in stream_texts(stream, data):
                    hub.check()
                    yield text

        return read

    facts = {
        "path": data.path,
        "subset": data.subset,
        "revision": data.revision,
        "validation": "its own" if VALIDATION in sides else "held out",
    }
    return Corpus(
        {side: reader(stream) for side, stream in sides.items()}, data.holdout_fraction, None, facts
    )


def _sha256_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
