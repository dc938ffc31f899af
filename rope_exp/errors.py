"""Exceptions, exit codes, and what a user sees: sentences and log lines."""

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIVERGED = 3
EXIT_STOPPED = 75  # EX_TEMPFAIL: run the same command again to resume
EXIT_NO_PORT = 76  # of a rank to its dispatcher, which starts the run again with another port

# The exit codes of runs that did not fail, by status.
EXIT_CODES = {"finished": EXIT_DONE, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}


class ConfigError(Exception):
    """A user's mistake, as one sentence `key=value: reason`; a command then exits with code 2.

    Args:
        key: the config key, flag or environment variable at fault.
        value: its value as given; Ellipsis: there is none, or it is not shown, as it may be secret.
        reason: the rest of the sentence, without a full stop: what is allowed, or what to do.
    """

    # The three are its `args`, so that it can be pickled: a scheduler's job sends it back.
    def __init__(self, key: str, value: Any, reason: str) -> None:
        super().__init__(key, value, reason)

    def __str__(self) -> str:
        key, value, reason = self.args
        where = show(key) if value is ... else f"{show(key)}={show(value)}"
        return f"{where}: {reason}"


class PortError(ConfigError):
    """Another process has the port at which the ranks of a run are to meet."""


class RunFolderError(ValueError):
    """A run folder that cannot be read; the message names the file."""


class CheckpointError(RuntimeError):
    """A checkpoint that does not verify; the message names the file."""


class LawError(RuntimeError):
    """A rotation that violates its own mathematics: a bug of ours, and no run may start."""


class DataError(RuntimeError):
    """The corpus or tokenizer is unavailable now, and the config is not at fault."""


def run_command(command: Callable[[], int], *, prints: bool = True) -> int:
    """Run a command; errors become one sentence on standard error.

    Args:
        command: returns an exit code.
        prints: it writes to stdout, whose reader may close early (`| head`). That is not an error.
    Returns:
        The exit code for the shell.
    """
    try:
        code = command()
        print(end="", flush=True)
        return code
    except (ConfigError, RunFolderError, CheckpointError) as error:
        log(f"error: {error}")
        return EXIT_USAGE
    except (DataError, LawError, OSError) as error:
        if prints and isinstance(error, BrokenPipeError):
            # The buffered rest would fail again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_DONE
        log(f"error: {error}")
        return EXIT_FAILED
    except RuntimeError as error:
        # If one rank fails, the others lose their connection to it. torch raises a `Dist...` type.
        # gloo raises a RuntimeError that names gloo/transport/, but so do its argument checks
        # ('enforce fail').
        is_from_torch = type(error).__name__.startswith("Dist")
        is_from_gloo = "gloo/transport/" in str(error) and "enforce fail" not in str(error)
        is_lost = is_from_torch or is_from_gloo
        if not (is_lost and "WORLD_SIZE" in os.environ):
            raise
        log(f"error: lost the other processes of this run ({first_line(error)})")
        return EXIT_FAILED


# Characters that a terminal or a page would act upon: escape codes, changes of direction, halves
# of characters. Newlines and tabs are not among them.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return text with the code of each control character in its place, such as \\x1b."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def show(value: Any) -> str:
    """Return a value as on the command line, in one line, with a long middle cut out."""
    if not (isinstance(value, str) and value.isprintable()):
        value = json.dumps(value, default=repr)
    return value if len(value) <= 300 else f"{value[:147]}...{value[-150:]}"


def first_line(error: BaseException | str) -> str:
    """Return an error's message, shown as `show` does."""
    return show(" ".join(str(error).split()) or type(error).__name__)


# `log` also appends to this file: the log of a run, if this process has one.
_log_file = Path(os.devnull)


def keep_log(path: Path) -> None:
    """Write every line of `log` also to a file, unless standard error is that file."""
    global _log_file
    _log_file = Path(os.devnull)
    with suppress(OSError):
        path.touch()
        if not os.path.samestat(os.fstat(2), path.stat()):
            _log_file = path


def log(line: str) -> None:
    """Print a line to standard error if possible, and to the file of `keep_log`."""
    line = visible(line)
    _append_to_log(line)
    # As one text: other processes could write between a line and a newline written separately.
    _print_error(f"{line_start()}{line}\n")


def redraw(line: str, *, keep: bool) -> None:
    """Show a line of progress. On a terminal the next line, of whichever process, replaces it.

    Args:
        line: its end is cut off where the terminal ends.
        keep: log the line; on a terminal, to the file of `keep_log` alone.
    """
    if not is_terminal():
        if keep:
            log(line)
        return
    line = visible(line)
    if keep:
        _append_to_log(line)
    # Some terminals state no width.
    width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    _print_error(f"{line_start()}{line[: width - 1]}")


def is_terminal() -> bool:
    """Return whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def line_start() -> str:
    """Return what begins a line of standard error: on a terminal, it empties a line of `redraw`."""
    return "\r\x1b[K" if is_terminal() else ""


def _append_to_log(line: str) -> None:
    with suppress(OSError), _log_file.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _print_error(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        # It is closed, or on a full disk. Its buffer would fail again when Python exits, and change
        # the exit code.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
