"""The command line: `rope-exp COMMAND ...`, or `python -m rope_exp COMMAND ...`.

Exit codes: 0 done, 1 failed, 2 bad config or usage, 3 diverged, 75 stopped; the same command
begins or resumes it.
"""

# Import nothing slow here: signals reach `exit_stopped` only after these imports.
import io
import signal
import sys
from typing import Protocol, cast

from rope_exp.errors import ConfigError, run_command
from rope_exp.signals import exit_stopped, on_signal


def main(command: str | None = None) -> int:
    """Run a command, by default the first word of the command line; return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may not have our characters, such as a table's Δ.
        sys.stdout.reconfigure(errors="replace")
    argv = sys.argv[1:]
    if command is None:
        command = argv.pop(0) if argv else "--help"
    if command in ("-h", "--help"):
        command = "train"
        argv = ["--help"]
    # Until a command that starts runs handles stop signals itself, one ends it; so does one that
    # comes while a corpus is prepared.
    can_resume = command in ("train", "campaign", "sweep", "prepare")
    if can_resume:
        on_signal(exit_stopped)
    code = run_command(lambda: _run(command, argv))
    if can_resume:
        # Only Python's exit is left, which a signal would garble.
        on_signal(signal.SIG_IGN)
    return code


class Command(Protocol):
    """A file of commands/."""

    def main(self, argv: list[str]) -> int:
        """Run the command with the words after its name; return its exit code."""


def _run(command: str, argv: list[str]) -> int:
    if command == "--version":
        from rope_exp.version import __version__

        print(__version__)
        return 0
    try:
        from rope_exp.identity import import_choice

        leaf = cast("Command", import_choice("commands", command.replace("-", "_"), "command"))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("rope_exp"):
            raise
        reason = f"lacks {error.name}; `make setup` installs all in .venv: . .venv/bin/activate"
        raise ConfigError("python", sys.executable, reason) from None
    return leaf.main(argv)


if __name__ == "__main__":
    sys.exit(main())
