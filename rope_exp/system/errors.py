"""Exceptions with one-sentence messages for the user, and the exit codes of commands."""

import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL: run the same command again to resume

# The exit codes of runs that did not fail, by status.
EXIT_CODES = {"finished": EXIT_DONE, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}


class ConfigError(Exception):
    """A user's mistake: the key, its value (... to show none), and the allowed values."""

    # The three are its `args`, so that it can be pickled: a scheduler's job sends it back.
    def __init__(self, key: str, value: Any, allowed: str) -> None:
        super().__init__(key, value, allowed)

    def __str__(self) -> str:
        key, value, allowed = self.args
        where = show(key) if value is ... else f"{show(key)}={show(value)}"
        return f"{where}: {allowed}"


class RecordError(ValueError):
    """A run folder that cannot be read; the message names the file."""


class CheckpointError(RuntimeError):
    """A checkpoint that does not verify; the message names the file."""


# A user can mend what these say: exit code 2.
MISTAKES = (ConfigError, RecordError, CheckpointError)


class LawError(RuntimeError):
    """A rotation that violates its own mathematics: a bug of ours, and no run may start."""


class DataError(RuntimeError):
    """The corpus or tokenizer is unavailable now, and the config is not at fault."""


class DiskError(OSError):
    """Too little space; the message names the folder, the bytes needed and the bytes free."""


def out_of_memory(error: BaseException) -> str | None:
    """Return the message for an out-of-memory error; None for any other error.

    Python and a GPU have their own error types for it. Torch on a CPU, C++, the system and their
    wrappers are recognised only by their messages.
    """
    words = "allocate memory|out of memory|enough memory|bad_alloc|ALLOC_FAILED|DefaultCPUAllocator"
    is_type = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not (is_type or re.search(words, str(error))):
        return None
    advice = "training takes less with a smaller train.micro_batch_size"
    return f"out of memory ({first_line(error)}); {advice}"


def sentence(error: Exception) -> str:
    """Return the message for an error; raise it if it is neither ours nor a lack of memory."""
    told = out_of_memory(error)
    ours = (*MISTAKES, DataError, LawError, OSError)
    if told is None and not isinstance(error, ours):
        raise error
    return told or str(error)


def explained(command: Callable[[], int]) -> int:
    """Run a command and return its exit code; errors become one sentence on standard error."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has closed the pipe. The buffered rest would fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (*MISTAKES, OSError, MemoryError, RuntimeError) as error:
        from rope_exp.system.console import log

        log(f"error: {sentence(error)}")
        return EXIT_USAGE if isinstance(error, MISTAKES) else EXIT_FAILED


def show(value: Any) -> str:
    """Return a value as on the command line, in one line, with a long middle cut out."""
    if isinstance(value, str) and value.isprintable():
        return _shortened(value)

    try:
        return _shortened(json.dumps(value, default=repr))
    except (TypeError, ValueError, RecursionError):
        # A key that is not text, a number past Python's limit, or a mapping that contains itself.
        return f"<{type(value).__name__}>"


def first_line(error: BaseException | str) -> str:
    """Return an error's message in one line, with a long middle cut out."""
    return _shortened(" ".join(str(error).split()) or type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:147]}...{text[-150:]}"
