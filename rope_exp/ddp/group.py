"""Several processes of one run: questions to all of them, and the end of all if one is lost."""

import gc
import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import distributed

from rope_exp.config import differing_keys
from rope_exp.errors import EXIT_FAILED, CheckpointError, first_line, log
from rope_exp.step import TrainingStep

BEAT_SECONDS = 2.0
PATIENCE = timedelta(minutes=2)


class Group:
    """The ranks of a run, which call each method at the same places.

    A thread of each rank ends its process if another rank has died, is frozen, or cannot be
    reached. A training collective cannot bound that time: a rank may evaluate, save or compile
    alone for long. So the threads meet every BEAT_SECONDS, and wait for PATIENCE.
    """

    def __init__(self) -> None:
        # On the host: a question to the other ranks must not wait for the device.
        self._hosts = distributed.new_group(backend="gloo")
        self._beats = distributed.new_group(backend="gloo", timeout=PATIENCE)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        all_leave = torch.tensor(0.0)
        try:
            while not all_leave:
                all_leave = torch.tensor(float(self._leaving.wait(BEAT_SECONDS)))
                distributed.all_reduce(all_leave, op=distributed.ReduceOp.MIN, group=self._beats)
        except RuntimeError as error:
            log(f"error: another process of this run is gone or silent ({first_line(error)})")
            os._exit(EXIT_FAILED)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank."""
        flags = torch.tensor(float(flag))
        distributed.all_reduce(flags, op=distributed.ReduceOp.MAX, group=self._hosts)
        return bool(flags)

    def begin(self, start: Mapping[str, Any], train_step: TrainingStep) -> None:
        """Refuse ranks that begin differently, as without a shared disk, and settle their sums.

        DistributedDataParallel reorders its buckets after its first average, and a sum of three or
        more ranks depends on the order: without a pass thrown away, a resume would not be exact.
        """
        first, *others = gather_object([start])
        for rank, theirs in enumerate(others, start=1):
            if keys := differing_keys(first, theirs):
                raise CheckpointError(
                    f"process {rank} begins elsewhere than process 0 ({'; '.join(keys)}); all of "
                    f"them must see the same {train_step.config.folder} and the same data"
                )

        train = train_step.config.train
        if len(others) > 1 and start["step"] < train.num_steps:
            inputs, *_ = train_step.get_batch(start["step"] + 1)
            rows = next(inputs.split(train.rows_at_once(*inputs.ids_BT.shape)))
            train_step.model(rows.ids_BT, rows.target_BP, **rows.further).backward()
            train_step.optimizer.zero_grad(set_to_none=True)

    def end(self, accelerator: Any) -> None:
        """Wait until every rank has called this, and leave; nothing may hold a prepared model."""
        self._leaving.set()
        self._thread.join()
        # Free the wrapped model first: a process group that is freed last can wait for its own
        # thread forever.
        accelerator.free_memory()
        gc.unfreeze()
        gc.collect()
        accelerator.end_training()
