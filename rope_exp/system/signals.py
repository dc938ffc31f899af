"""Being asked to stop: SIGTERM, SIGINT or SIGUSR1 once is a request, twice leaves at once.

SIGUSR1 is what `sbatch --signal=USR1@120` sends ahead of a job's limit.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from types import FrameType

from rope_exp.system.errors import EXIT_STOPPED

REPEAT_SECONDS = (
    2.0  # signals closer together are one: schedulers send theirs to every process of a job
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when `parent`, which started it, dies, even by kill -9. On Linux alone.

    So the same command can go on at once: no rank lives on, holding the run's lock and its GPU.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(EXIT_STOPPED)


class StopSignal:
    """Installs itself on construction; `requested` turns true with the first signal."""

    def __init__(self) -> None:
        self.requested, self._requested_at = False, 0.0
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, STOP_SIGNALS
        )  # a dispatcher starts ranks with these held back

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested:
            if now - self._requested_at >= REPEAT_SECONDS:
                os._exit(EXIT_STOPPED)
            return
        self.requested, self._requested_at = True, now
        with contextlib.suppress(OSError):  # nobody may be reading
            os.write(
                2, b"asked to stop: saving after this micro-batch; a second signal leaves at once\n"
            )
