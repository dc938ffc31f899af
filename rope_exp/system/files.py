"""What the disk promises: files that appear whole, names that last, locks that end with their processes, room.

No torch, and nothing of the project.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from rope_exp.system.errors import DiskError, RecordError, first_line


def check_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to start where `needed_bytes` for `what` are not free.

    Raises:
        DiskError: naming the folder and both numbers.
    """
    free = free_bytes(folder)
    if free < needed_bytes:
        raise disk_full(folder, needed_bytes, what)


def free_bytes(folder: Path) -> int:
    """The space left where `folder` is, or will be."""
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    return shutil.disk_usage(existing).free


def disk_full(folder: Path, needed_bytes: int, what: str) -> DiskError:
    """The error of a disk that has no room for `what`."""
    return DiskError(
        f"no space left in {folder}: {what} needs {needed_bytes:,} bytes and {free_bytes(folder):,} are free; "
        "make room, or choose another folder"
    )


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by a file of this content, whole or not at all, and on the disk when this returns.

    What a kill leaves (`.<name>.new`) is overwritten by the next write of the same file.

    Raises:
        DiskError: the disk is full. OSError: it is broken. The old file stands, or the new one whole.
    """
    temporary = path.with_name(f".{path.name}.new")
    content = content.encode() if isinstance(content, str) else content
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and is_full(error):
            raise disk_full(path.parent, len(content), path.name) from None
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
    """A descriptor that holds the lock of `path`, or None while another one does.

    The lock lives as long as any process has the descriptor open, children that it was passed to included; the kernel
    gives it back when the last one ends, however it ends.
    """
    while True:
        # Open for writing: on NFS an exclusive lock needs that.
        descriptor = os.open(
            path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666
        )
        _check_regular(descriptor, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)  # its folder was moved aside meanwhile


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, as `descriptor_of` does."""
    return os.fdopen(descriptor_of(path), "rb")


def descriptor_of(path: Path) -> int:
    """A descriptor to read a regular file by, and nothing else: no link, no device, no pipe that one would wait at.

    Raises:
        OSError: it is missing, or something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    _check_regular(descriptor, path)
    return descriptor


def _check_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))


def read_text(path: Path) -> str:
    """The text of a file of ours: a regular file (a link or a pipe in its place is not what was written), in UTF-8.

    Raises:
        RecordError: it is none.
    """
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {first_line(error)}") from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object; NaN and infinity are refused, since JSON has none."""
    write_atomically(path, to_json(values))


def to_json(values: Mapping[str, Any]) -> str:
    """The one way in which JSON objects are spelled here."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RecordError: the file is missing, is no JSON, or holds no object.
    """
    text = read_text(path)
    try:
        values = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(values, dict):
        raise RecordError(f"{path} holds no JSON object")
    return values


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinity, which Python reads and JSON has not."""
    raise ValueError(f"{name} is no JSON")


def json_sha256(values: Any) -> str:
    """SHA-256 of plain values as JSON, keys in order: what configs, corpora and prepared folders are told apart by."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, allow_nan=False).encode()).hexdigest()
