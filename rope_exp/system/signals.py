"""Being asked to stop: SIGTERM, SIGINT or SIGUSR1 once is a request, twice leaves at once.

SIGUSR1 is what `sbatch --signal=USR1@120` sends ahead of a job's limit.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from rope_exp.system.errors import EXIT_STOPPED

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Signals closer together are one: a scheduler sends its own to every process of a job.
REPEAT_SECONDS = 2.0


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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested = True
            self._requested_at = now
            self.on_request()
        elif now - self._requested_at >= REPEAT_SECONDS:
            self.on_repeat()
