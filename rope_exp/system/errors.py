"""What can go wrong, each in one sentence for the user, and the exit codes that say it to scripts. No torch."""

import json
from typing import Any

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL: run the same command again to go on
# How a run ends that did not fail, and the exit code that says so.
EXIT_CODES = {"finished": EXIT_DONE, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}


class ConfigError(ValueError):
    """A user's mistake in one sentence: the key, its value (... where there is none to show), and what is allowed."""

    def __init__(self, key: str, value: Any, allowed: str) -> None:
        super().__init__(
            f"{show(key)}: {allowed}" if value is ... else f"{show(key)}={show(value)}: {allowed}"
        )


class RecordError(ValueError):
    """A run folder that cannot be read as one; the message names the file."""


class CheckpointError(RuntimeError):
    """A checkpoint that does not verify; the message names the file."""


class DataError(RuntimeError):
    """The corpus or tokenizer cannot be had, through no fault of the config (the network, a file that changes)."""


class DiskError(OSError):
    """Too little space; the message names the folder, the bytes needed and the bytes free."""


def show(value: Any) -> str:
    """A value as the command line would spell it, on one line; a long one without its middle."""
    try:
        text = (
            value
            if isinstance(value, str) and value.isprintable()
            else json.dumps(value, default=repr)
        )
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # a key that is no text, a number past Python's limit, a circle
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:97]}...{text[-100:]}"


def first_line(error: BaseException) -> str:
    """An error's message in one line."""
    text = " ".join(str(error).split())
    return (text if len(text) <= 300 else text[:297] + "...") or type(error).__name__
