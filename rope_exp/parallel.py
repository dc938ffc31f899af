"""The ranks of a run: collective calls, and a heartbeat that ends a run that lost a rank."""

import gc
import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import gather_object
from torch import Tensor, distributed

from rope_exp.config import differing_keys
from rope_exp.errors import (
    EXIT_FAILED,
    CheckpointError,
    ConfigError,
    PortError,
    first_line,
    log,
)

BEAT_SECONDS = 2.0
PATIENCE = timedelta(minutes=2)
# A rank waits for rank 0 to answer probes or to save, which may take hours at 1B parameters. The
# heartbeat ends a run whose ranks are gone, so this bound only replaces gloo's 30 minutes.
LONGEST_WAIT = timedelta(days=1)


class RankGroup:
    """The ranks of a run, which call each method at the same places.

    A thread of each rank ends its process if another rank has died, is frozen, or cannot be
    reached. A training collective cannot bound that time: a rank may evaluate, save or compile
    alone for long. So the threads meet every BEAT_SECONDS, and wait for PATIENCE.
    """

    def __init__(self) -> None:
        # On the host: a question to the other ranks must not wait for the device.
        self._hosts = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
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

    def check_same_start(self, start: Mapping[str, Any], folder: Path) -> None:
        """Refuse ranks that begin differently, as they do without a shared disk.

        Args:
            start: this rank's step, hashes and other plain values, which must be rank 0's.
            folder: the run's folder, for the error.
        Raises:
            CheckpointError: they differ; it names the rank and the keys.
        """
        first, *others = gather_object([start])
        for rank, theirs in enumerate(others, start=1):
            keys = differing_keys(first, theirs)
            if keys:
                raise CheckpointError(
                    f"process {rank} begins elsewhere than process 0 ({'; '.join(keys)}); all of "
                    f"them must see the same {folder} and the same data"
                )

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


class Parallel:
    """This process among the ranks of its run; rank 0 (`is_main`) writes the run's record.

    Launchers have started fewer processes or chosen another strategy than requested, so the world
    that the launcher made is compared with the config's.

    Args:
        device: launch.device, "cpu" or "cuda".
        precision: train.precision, "bf16" or "fp32".
        num_processes: launch.num_processes, resolved.

    Attributes:
        rank: from 0 to world_size - 1.
        world_size: the number of processes that train the run together.
        device: the device of this rank.
        group: the process groups of all ranks; None if no launcher made any, so that this is the
            only process.

    Raises:
        ConfigError: the launcher or the machine provides another world than requested.
        PortError: another process has the port at which the ranks meet.
    """

    def __init__(self, device: str, precision: str, num_processes: int | str) -> None:
        try:
            self.accelerator = Accelerator(
                cpu=device == "cpu",
                mixed_precision="bf16" if precision == "bf16" else "no",
                kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
            )
        except distributed.DistNetworkError as error:
            if "EADDRINUSE" not in str(error):
                raise
            reason = "another process has this port; choose another"
            raise PortError("MASTER_PORT", os.environ["MASTER_PORT"], reason) from None
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        self.is_main = self.rank == 0
        self.device: torch.device = self.accelerator.device

        if self.world_size != num_processes:
            reason = f"but this launcher started {self.world_size}"
            raise ConfigError("launch.num_processes", num_processes, reason)
        if self.device.type != device:
            reason = f"torch finds no such device here, and gives {self.device}"
            raise ConfigError("launch.device", device, reason)
        # Emulated bf16 is slower than fp32.
        if precision == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(False):
            raise ConfigError("train.precision", precision, "this GPU has no bf16; use fp32")
        backend = self.accelerator.state.dynamo_plugin.backend.name
        if backend != "NO":
            reason = "must be unset: use train.compile"
            raise ConfigError("ACCELERATE_DYNAMO_BACKEND", backend, reason)
        strategy = self.accelerator.distributed_type.name
        plain = "MULTI_GPU" if device == "cuda" else "MULTI_CPU"
        # torchrun may also start one process.
        if strategy != plain and (strategy, self.world_size) != ("NO", 1):
            raise ConfigError("accelerate's distributed_type", strategy, f"must be {plain}")

        self.group = RankGroup() if distributed.is_initialized() else None

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` over all ranks, on every rank."""
        if self.world_size == 1:
            return tensor
        return self.accelerator.reduce(tensor, reduction="sum")

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank; all ranks must call it at the same places."""
        if self.group is None or self.world_size == 1:
            return flag
        return self.group.any(flag)

    def wait(self) -> None:
        """Wait until every rank has called this, for LONGEST_WAIT at most."""
        self.any(False)
