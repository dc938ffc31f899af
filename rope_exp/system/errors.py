"""What can go wrong, each in one sentence for the user, and the exit codes that tell scripts."""

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
EXIT_STOPPED = 75  # EX_TEMPFAIL: run the same command again to go on

# How a run ends that did not fail.
EXIT_CODES = {"finished": EXIT_DONE, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}


class ConfigError(ValueError):
    """A user's mistake: the key, its value (... where none is to be shown), and what is allowed."""

    # The three are its `args`, so that it can be pickled: a job of a scheduler's sends it home.
    def __init__(self, key: str, value: Any, allowed: str) -> None:
        super().__init__(key, value, allowed)

    def __str__(self) -> str:
        key, value, allowed = self.args
        where = show(key) if value is ... else f"{show(key)}={show(value)}"
        return f"{where}: {allowed}"


class RecordError(ValueError):
    """A run folder that cannot be read as one; the message names the file."""


class CheckpointError(RuntimeError):
    """A checkpoint that does not verify; the message names the file."""


class LawError(RuntimeError):
    """A rotation that breaks its own mathematics: a fault of ours, and no run may start."""


class DataError(RuntimeError):
    """The corpus or tokenizer cannot be had now, and the config is not at fault."""


class DiskError(OSError):
    """Too little space; the message names the folder, the bytes needed and the bytes free."""


def out_of_memory(error: BaseException) -> str | None:
    """Return what is said of an error that is a lack of memory; None of another one.

    Python and a GPU have types of their own for it, the rest (torch on a CPU, C++, the system and
    what wraps these) words alone.
    """
    words = "allocate memory|out of memory|enough memory|bad_alloc|ALLOC_FAILED|DefaultCPUAllocator"
    is_type = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if not (is_type or re.search(words, str(error))):
        return None
    advice = "training takes less with a smaller train.micro_batch_size"
    return f"out of memory ({first_line(error)}); {advice}"


def sentence(error: Exception) -> str:
    """Return what is said of an error; one that is neither ours nor a lack of memory is raised."""
    told = out_of_memory(error)
    ours = (ConfigError, RecordError, DataError, LawError, OSError)
    if told is None and not isinstance(error, ours):
        raise error
    return told or str(error)


def explained(command: Callable[[], int]) -> int:
    """Return the exit code of a command, whose mistakes become one sentence on standard error."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever was reading has seen enough. What is left would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (ConfigError, RecordError, DataError, OSError, MemoryError, RuntimeError) as error:
        from rope_exp.system.console import log

        log(f"error: {sentence(error)}")
        return EXIT_USAGE if isinstance(error, (ConfigError, RecordError)) else EXIT_FAILED


def show(value: Any) -> str:
    """Return a value as the command line would spell it, on one line, without a long middle."""
    if isinstance(value, str) and value.isprintable():
        return _shortened(value)

    try:
        return _shortened(json.dumps(value, default=repr))
    except (TypeError, ValueError, RecursionError):
        # A key that is no text, a number past Python's limit, a mapping that holds itself.
        return f"<{type(value).__name__}>"


def first_line(error: BaseException | str) -> str:
    """Return an error's message in one line, without a long middle."""
    return _shortened(" ".join(str(error).split()) or type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:147]}...{text[-150:]}"
