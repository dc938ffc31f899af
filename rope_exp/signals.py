"""Stop signals: SIGTERM, SIGINT, SIGUSR1, SIGALRM or SIGHUP requests a stop.

The same again, more than two seconds later, exits at once.

SLURM sends SIGUSR2 before the time limit. Ranks treat it as a stop signal. In the dispatcher,
submitit (`train -m`) or `slurm.run_on_node` handles it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from rope_exp.errors import EXIT_STOPPED, line_start

_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
# The alarm is that of `campaign --hours`.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM, *_HANGUP)
# Signals closer together count as one: a scheduler sends its own to every process of a job. A rank
# gets the dispatcher's as well, perhaps later; it is another signal, and no repetition.
REPEAT_SECONDS = 2.0
PASSED_ON = signal.SIGINT  # by a dispatcher to its ranks; no scheduler sends it


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Start the block's processes with the stop signals blocked, until they install handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGUSR2))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class StopRequested(Exception):  # noqa: N818
    """The run was asked to stop; the same command starts the probes again."""


class StopSignal:
    """Records requests to stop this process, from its construction on.

    After the first signal `requested` is True. If the same signal comes again, more than
    REPEAT_SECONDS later, a rank exits at once and a dispatcher's `repeated` is True.
    """

    def __init__(self, *, is_rank: bool = True) -> None:
        self.requested = False
        self.repeated = False
        self._is_rank = is_rank
        # When each signal came first, by the monotonic clock.
        self._received: dict[int, float] = {}
        heeded = (*STOP_SIGNALS, signal.SIGUSR2) if is_rank else STOP_SIGNALS
        self._handlers = {number: signal.signal(number, self._handle) for number in heeded}
        # A dispatcher starts its ranks with these signals blocked.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first = self._received.setdefault(number, now)
        if not self.requested:
            self.requested = True
            if self._is_rank:
                _write("asked to stop: saving soon; the same signal again leaves at once")
        elif now > first + REPEAT_SECONDS:
            self.repeated = True
            if self._is_rank:
                os._exit(EXIT_STOPPED)


def signal_name(number: int) -> str:
    """Return a signal as text; Python has no names for most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- while no run is in progress -------------------------------------------------------------------


def on_signal(handler: Any) -> None:
    """Install `handler` for every stop signal."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


def exit_stopped(*_: object) -> NoReturn:
    """Exit while no run is in progress; an exception could get lost inside an import."""
    _write("stopped; no run was in progress")
    os._exit(EXIT_STOPPED)


def _write(line: str) -> None:
    # Nobody may be reading.
    with contextlib.suppress(OSError):
        os.write(2, f"{line_start()}{line}\n".encode())
