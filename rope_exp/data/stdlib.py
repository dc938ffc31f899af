"""The stdlib corpus: the source of Python's standard library, which every machine has."""

import platform
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import TRAIN, Corpus

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
