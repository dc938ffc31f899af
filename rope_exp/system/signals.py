"""Being asked to stop: SIGTERM, SIGINT, SIGUSR1 or SIGHUP is a request, a second leaves at once.

SIGUSR1 is what `sbatch --signal=USR1@120` sends ahead of a job's limit, SIGHUP what a terminal
sends when it closes. nohup has a process ignore that, and so do we then.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from rope_exp.system.errors import EXIT_STOPPED

_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, *_HANGUP)
# Signals closer together are one: a scheduler sends its own to every process of a job.
REPEAT_SECONDS = 2.0
BEFORE_ANY_RUN = b"stopped before any run was started\n"


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when `parent`, which started it, dies, even by kill -9.

    So the same command can go on at once: no rank lives on, holding the run's lock and its GPU.
    Linux alone can do this; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)

        # It died before we asked.
        if os.getppid() != parent:
            os._exit(EXIT_STOPPED)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Start the block's processes with the stop signals held back, until they listen to them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class StopSignal:
    """Hears that this process is to stop, from its construction on.

    Attributes:
        requested: turns true with the first signal.
    """

    def __init__(self) -> None:
        self.requested = False
        self._requested_at = 0.0
        self._handlers = {each: signal.signal(each, self._handle) for each in STOP_SIGNALS}

        # A dispatcher starts its ranks with these held back.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def restore(self) -> None:
        """Let those hear the signals who heard them before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def on_request(self) -> None:
        """Answer the first signal; somebody looks at `requested` soon."""
        with contextlib.suppress(OSError):  # nobody may be reading
            line = b"asked to stop: saving after this micro-batch; a second signal leaves at once\n"
            os.write(2, line)

    def on_repeat(self) -> None:
        """Answer a second signal, which no longer waits for anything."""
        os._exit(EXIT_STOPPED)

    def request(self) -> None:
        """Ask to stop, as a first signal does."""
        # The time first: a signal between the two would count as a second one.
        self._requested_at = time.monotonic()
        self.requested = True
        self.on_request()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.request()
        elif time.monotonic() - self._requested_at >= REPEAT_SECONDS:
            self.on_repeat()


# -- before there is anything to save --------------------------------------------------------------


def on_signal(handler: Any) -> None:
    """Have `handler` hear every signal that asks to stop."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> None:
    """Leave before there is anything to save: an exception could be lost inside an import."""
    # Nobody may be reading.
    with contextlib.suppress(OSError):
        os.write(2, BEFORE_ANY_RUN)
    os._exit(EXIT_STOPPED)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind what prepares data; asked again, perhaps by one burst of signals, leave at once."""
    on_signal(leave)
    raise KeyboardInterrupt


def starting_runs(command: Callable[[], int]) -> int:
    """Return the exit code of a command that starts runs, which a signal may meet at any moment.

    Until it has `interrupt` hear the signals, they end it at once.
    """
    on_signal(leave)
    try:
        return command()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            os.write(2, BEFORE_ANY_RUN)
        return EXIT_STOPPED
    finally:
        # The rest is Python's own end, which a signal would only garble.
        on_signal(signal.SIG_IGN)
