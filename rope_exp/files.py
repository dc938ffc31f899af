"""Atomic and durable writes, locks that end with their processes, free disk space, and JSON."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from rope_exp.errors import RunFolderError, first_line

LONGEST_NAME = 200  # bytes of a name of ours; a system allows 255, and we add prefixes and suffixes


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which may not exist yet."""
    return shutil.disk_usage(_nearest_existing(folder)).free


def _nearest_existing(folder: Path) -> Path:
    """Return a folder if it exists, or else its nearest parent that does."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    return nearest


class DiskError(OSError):
    """A disk has too little space for `what`."""

    def __init__(
        self, folder: Path, needed_bytes: int | None, what: str, *, over_quota: bool = False
    ) -> None:
        """Say what is used up.

        Args:
            folder: where the disk is full; it may not exist yet.
            needed_bytes: the size of `what`; None: unknown.
            what: the file or the folder that was being written.
            over_quota: the user's quota is full, rather than the disk.
        """
        free = free_bytes(folder)
        if over_quota:
            reason = f"{what} exceeds your quota of disk space"
        elif needed_bytes is not None and needed_bytes > free:
            reason = f"{what} needs {needed_bytes:,} bytes and {free:,} are free"
        else:
            # A disk can also run out of files, whatever the number of free bytes.
            reason = f"{what} needs more than is free ({free:,} bytes{_free_files(folder)})"
        self.over_quota = over_quota
        remedy = "make room, or choose another folder"
        super().__init__(f"no space left in {folder}: {reason}; {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return OSError, self.args  # another process reads the sentence alone


def _free_files(folder: Path) -> str:
    """Return how many files can be added to the disk of `folder`, as text after a number."""
    disk = os.statvfs(_nearest_existing(folder))
    # Some file systems have no limit, and say 0.
    return f", {disk.f_favail:,} files" if disk.f_files else ""


def is_full(error: OSError) -> bool:
    """Return whether an error means that the disk, or the user's quota, is full."""
    return isinstance(error, DiskError) or error.errno in (errno.ENOSPC, errno.EDQUOT)


def system_error(error: Exception) -> Exception:
    """Return the system's error that a library in Rust reports as text, or else `error` itself."""
    number = re.search(r"os error (\d+)", str(error))
    if isinstance(error, OSError) or number is None:
        return error
    return OSError(int(number[1]), os.strerror(int(number[1])))


@contextmanager
def refuse_full_disk(folder: Path, needed_bytes: int | None, what: str) -> Iterator[None]:
    """Say in one sentence what did not fit, if the block meets a full disk.

    Blocks may be nested. The outer one replaces the sentence of the inner one, which may name a
    hidden folder that the user does not know.

    Args:
        folder: the folder that the user knows; it may not exist yet.
        needed_bytes: the size of `what`; None: unknown.
        what: the file or the folder that the block writes, for the sentence.
    Returns:
        A context. Other errors of its block pass unchanged.
    Raises:
        DiskError: the disk, or the user's quota, is full.
    """
    try:
        yield
    except Exception as raised:
        error = system_error(raised)
        if not (isinstance(error, OSError) and is_full(error)):
            raise
        over_quota = error.errno == errno.EDQUOT
        if isinstance(error, DiskError):
            over_quota = over_quota or error.over_quota
        raise DiskError(folder, needed_bytes, what, over_quota=over_quota) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` atomically by a file of this content, and sync it to the disk.

    Other writers of the same file wait for their turn. After a kill, the next write overwrites the
    leftover (`.<name>.new`). If the disk is full or broken, the old file remains, or the new one.
    """
    if isinstance(content, str):
        content = content.encode()
    temporary = path.with_name(f".{path.name}.new")
    full_disk = refuse_full_disk(path.parent, len(content), path.name)
    with full_disk, os.fdopen(lock(temporary), "wb") as file:
        try:
            file.truncate(0)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


@contextmanager
def new_folder(folder: Path, needed_bytes: int | None, what: str) -> Iterator[Path]:
    """Yield a hidden folder beside `folder`, and rename it to that when the block is done.

    The block syncs the files. If it raises, nothing of them remains. A kill leaves the hidden
    folder, which the next call removes.

    Args:
        folder: does not exist yet; missing parents are made.
        needed_bytes: the size of all files; None: unknown.
        what: names them in the sentence about a full disk.
    Raises:
        DiskError: the disk, or the user's quota, is full.
    """
    temporary = folder.with_name(f".saving-{folder.name}")
    with refuse_full_disk(folder.parent, needed_bytes, what):
        make_folders(folder.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
            temporary.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def path_name(text: str, *, shortens: bool = True) -> str:
    """Return text as the name of one file or folder, which is neither hidden nor too long.

    Anything but letters, digits and . _ + = , - becomes an underscore, and so no name leads out of
    its folder. Different short texts may get the same name.

    `shortens`: a name of more than LONGEST_NAME bytes becomes its beginning and a hash.
    """
    name = re.sub(r"[^\w.+=,-]|^\.", "_", text)
    if shortens and len(name.encode()) > LONGEST_NAME:
        return f"{name[:40]}-{text_sha256(text)[:16]}"
    return name


def make_folders(folder: Path) -> None:
    """Make a folder and its missing parents, unless they exist, and make their names durable."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a rename is durable only once the folder is synced)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Acquire the lock of `path`, unless it is held already.

    The lock is held as long as any process has the descriptor open, including children that
    received it, and ends with the last one. A `shared` lock may be held by others, too.

    Returns:
        The lock's descriptor; None if somebody else holds the lock.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        return lock(path, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def lock(path: Path, flags: int = fcntl.LOCK_EX) -> int:
    """Acquire the lock of `path`.

    `flags` are those of flock(2). By default the lock is exclusive, and the call waits until it is
    free.

    Returns:
        The lock's descriptor, which holds it until it is closed.
    Raises:
        BlockingIOError: the flags have LOCK_NB, and somebody else holds the lock.
    """
    while True:
        # Open for writing: on NFS an exclusive lock needs that.
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, flags)
        except BaseException:
            os.close(descriptor)
            raise

        # Meanwhile `write_atomically` may have renamed it, or its folder may have been moved.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


@contextmanager
def refuse_unreadable(what: object, *errors: type[Exception]) -> Iterator[None]:
    """Refuse a source that the block cannot read, in one sentence that names it.

    Args:
        what: the path of the source, or a name of it, such as a path and a line.
        errors: refused like system errors, value errors and too deep recursion.
    Returns:
        A context. Other errors of its block pass unchanged.
    Raises:
        RunFolderError: the block raised such an error.
    """
    refused: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *errors)
    try:
        yield
    except refused as error:
        raise RunFolderError(f"{what} cannot be read: {first_line(error)}") from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object; NaN and infinity are refused, since JSON has none."""
    write_atomically(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def open_file(path: Path) -> BufferedReader:
    """Return a regular file, opened for reading.

    A folder that somebody else made may hold a named pipe, and opening that would wait for ever.

    Raises:
        RunFolderError: it is a pipe, a folder or a device.
        OSError: it does not exist, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RunFolderError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; errors as of `open_file`."""
    with open_file(path) as file:
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a RunFolderError names the file."""
    with refuse_unreadable(path):
        content = read_bytes(path)
    return parse_json(path, content)


def parse_json(what: object, content: bytes) -> dict[str, Any]:
    """Return the JSON object in `content`; `what` names its source in errors."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    with refuse_unreadable(what):
        # Python would read NaN and infinity.
        values = json.loads(content.decode(), parse_constant=refuse)
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
    return values


def files_sha256(files: Mapping[str, Path]) -> str:
    """Return the SHA-256 of the names and contents of some files, in the mapping's order."""
    hashes = {name: hashlib.sha256(read_bytes(path)) for name, path in files.items()}
    return json_sha256([[name, content.hexdigest()] for name, content in hashes.items()])


def json_sha256(values: Any) -> str:
    """Return the SHA-256 of plain values as JSON with sorted keys."""
    return text_sha256(json.dumps(values, sort_keys=True, allow_nan=False))


def text_sha256(text: str) -> str:
    """Return the SHA-256 of text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
