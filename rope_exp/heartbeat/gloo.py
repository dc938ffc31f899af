"""Processes of one run that tell each other that they are alive."""

import os
import threading
from datetime import timedelta

import torch
from torch import distributed

from rope_exp.errors import EXIT_FAILED, first_line, log

BEAT_SECONDS = 2.0
PATIENCE = timedelta(minutes=2)


class Heartbeat:
    """Ends this process if another rank has died, is frozen, or cannot be reached.

    A training collective cannot bound that time: a rank may evaluate, save or compile alone for
    long. So a thread of each rank meets the others every BEAT_SECONDS, and waits for PATIENCE.
    """

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=PATIENCE)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until every rank has called this."""
        self._leaving.set()
        self._thread.join()

    def _beat(self) -> None:
        all_leave = torch.tensor(0.0)
        try:
            while not all_leave:
                all_leave = torch.tensor(float(self._leaving.wait(BEAT_SECONDS)))
                distributed.all_reduce(all_leave, op=distributed.ReduceOp.MIN, group=self._group)
        except RuntimeError as error:
            log(f"error: another process of this run is gone or silent ({first_line(error)})")
            os._exit(EXIT_FAILED)
