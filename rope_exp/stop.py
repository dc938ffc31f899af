"""Being asked to stop: SIGTERM or SIGINT once is a request, twice leaves at once."""

import os
import signal
from types import FrameType

EXIT_STOPPED = 75  # EX_TEMPFAIL: run the same command again to go on


class StopSignal:
    """Installs itself on construction; `requested` turns true with the first signal."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(EXIT_STOPPED)
        self.requested = True
