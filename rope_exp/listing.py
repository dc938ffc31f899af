"""The list of the files that the last report wrote to a folder, so that the next can replace them.

Whatever else lies in the folder is never removed.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from typing_extensions import TypedDict

from rope_exp.errors import RunFolderError
from rope_exp.files import read_json
from rope_exp.folder import checked

LISTING = ".written.json"


class _Listing(TypedDict):
    """The content of `LISTING`: the SHA-256 of each file by its path."""

    files: dict[str, str]


def check_below(out: Path, names: Iterable[str]) -> None:
    """Refuse paths that lead out of a folder."""
    for name in names:
        if not _is_below(out, name):
            raise RunFolderError(f"{out / name} would be written outside {out}")


def _is_below(out: Path, name: str) -> bool:
    """Return whether a path leads to a place in a folder, through links, too."""
    return (out / name).resolve().is_relative_to(out.resolve())


def remove_listed(out: Path, files: Collection[str]) -> None:
    """Remove the files of the last table in a folder that the next one, `files`, lacks.

    A file that the listing does not name, or that was changed since, stays.
    """
    listing = out / LISTING
    last = checked(listing, read_json(listing), _Listing)["files"] if listing.exists() else {}
    for name in last.keys() - set(files):
        path = out / name
        if _is_below(out, name) and path.is_file() and _sha256(path.read_bytes()) == last[name]:
            path.unlink()
            _remove_empty(path.parent, out)


def listing_of(files: Mapping[str, bytes]) -> bytes:
    """Return the listing of a table's files."""
    digests = {name: _sha256(content) for name, content in sorted(files.items())}
    return json.dumps({"files": digests}, indent=1).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _remove_empty(folder: Path, out: Path) -> None:
    """Remove a folder below `out` if it is empty, and its parents likewise."""
    with suppress(OSError):
        while folder != out:
            folder.rmdir()
            folder = folder.parent
