"""What the disk promises: whole files, names that last, locks that end with their processes, room.

No torch, and nothing of the project.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rope_exp.system.errors import DiskError, RecordError, first_line


def check_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to start where `needed_bytes` for `what` are not free in `folder`.

    Raises:
        DiskError: naming the folder and both numbers.
    """
    if free_bytes(folder) < needed_bytes:
        raise disk_full(folder, needed_bytes, what)


def free_bytes(folder: Path) -> int:
    """Return the space left where `folder` is, or will be."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def disk_full(folder: Path, needed_bytes: int, what: str) -> DiskError:
    """Return the error of a disk that has no room for `what`."""
    return DiskError(
        f"no space left in {folder}: {what} needs {needed_bytes:,} bytes "
        f"and {free_bytes(folder):,} are free; make room, or choose another folder"
    )


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, is full."""
    return isinstance(error, DiskError) or error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explaining_full_disk(folder: Path, needed_bytes: int, what: str) -> Iterator[None]:
    """Raise `disk_full` in the place of the system's error where the block meets a full disk."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise disk_full(folder, needed_bytes, what) from None
        raise


def write_atomically(path: Path, content: str | bytes, *, replace: bool = True) -> None:
    """Replace `path` by a file of this content, whole or not at all, and on the disk at the end.

    Whoever else writes the same file waits for its turn. What a kill leaves (`.<name>.new`) is
    overwritten by the next write.

    Args:
        replace: false leaves a file alone that is there already.
    Raises:
        DiskError: the disk is full. The old file stands, or the new one whole.
        OSError: the disk is broken; the same holds.
    """
    temporary = path.with_name(f".{path.name}.new")
    if isinstance(content, str):
        content = content.encode()

    full_disk = explaining_full_disk(path.parent, len(content), path.name)
    with full_disk, os.fdopen(lock(temporary), "wb") as file:
        try:
            file.truncate(0)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if replace or not path.exists():
                temporary.replace(path)
            else:
                temporary.unlink()
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a rename is only that once the folder is synced)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Acquire the lock of `path`, unless another one holds it.

    The lock lives as long as any process has the descriptor open, children that it was passed to
    included; the kernel gives it back when the last one ends, however it ends.

    Returns:
        A descriptor that holds the lock, or None.
    """
    try:
        return lock(path, fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def lock(path: Path, flags: int = 0) -> int:
    """Acquire the lock of `path` as soon as nobody else holds it; else as `try_lock`.

    Args:
        flags: further ones of flock(2).
    """
    while True:
        # Open for writing: on NFS an exclusive lock needs that.
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        except BaseException:
            os.close(descriptor)
            raise

        # Meanwhile its folder may have been moved aside, and another file locked in its place.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


@contextmanager
def readable(what: object, *errors: type[Exception]) -> Iterator[None]:
    """Refuse `what` by name where the block cannot read it, or not as what it should be.

    Raises:
        RecordError: in the place of an error of the system's, of a value's, or one of `errors`.
    """
    refused: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *errors)
    try:
        yield
    except refused as error:
        raise RecordError(f"{what} cannot be read: {first_line(error)}") from error


def read_text(path: Path) -> str:
    """Return the text of a file that we wrote.

    Raises:
        RecordError: it is missing, or not UTF-8.
    """
    with readable(path):
        return path.read_text(encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object; NaN and infinity are refused, since JSON has none."""
    write_atomically(path, to_json(values))


def to_json(values: Mapping[str, Any]) -> str:
    """Spell a JSON object in the one way in which they are spelled here."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RecordError: the file is missing, is no JSON, or holds no object.
    """
    with readable(path):
        content = path.read_bytes()
    return parse_json(path, content)


def parse_json(what: object, content: bytes) -> dict[str, Any]:
    """Return the JSON object that `what` holds.

    Raises:
        RecordError: it is no JSON, or holds no object.
    """
    with readable(what):
        values = json.loads(content.decode(), parse_constant=refuse_constant)
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
    return values


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def files_sha256(files: Mapping[str, Path]) -> str:
    """Return the SHA-256 of the names and contents of some files."""
    return json_sha256(
        [[name, hashlib.sha256(path.read_bytes()).hexdigest()] for name, path in files.items()]
    )


def json_sha256(values: Any) -> str:
    """Return the SHA-256 of plain values as JSON with its keys in order.

    Configs, corpora and prepared folders are told apart by it.
    """
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
