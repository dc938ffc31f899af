"""The ranks of one run: the only module that uses accelerate and torch.distributed.

Launchers have started fewer processes or chosen another strategy than requested, so the world is
compared with the run's config before training.
"""

import gc
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import gather_object
from torch import Tensor, distributed, nn

from rope_exp.errors import EXIT_FAILED, ConfigError, first_line, log

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


class Parallel:
    """This process among the ranks of its run; rank 0 (`is_main`) writes the run's record.

    Raises:
        ConfigError: the launcher or the machine provides another world than requested by
            launch.device, train.precision ("bf16" or "fp32") and launch.num_processes.
    """

    def __init__(self, device: str, precision: str, num_processes: int | str) -> None:
        self._accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision="bf16" if precision == "bf16" else "no",
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )
        self.rank: int = self._accelerator.process_index
        self.world_size: int = self._accelerator.num_processes
        self.is_main = self.rank == 0
        self.device: torch.device = self._accelerator.device
        self._check(device, precision, num_processes)

        # Always on the host: a question to the other ranks must not wait for the device.
        if self.world_size > 1:
            self._hosts = distributed.new_group(backend="gloo")
            self._heartbeat = Heartbeat()

    def prepare(self, model: nn.Module) -> nn.Module:
        """Move `model` to the device; return it wrapped for precision and averaged gradients."""
        prepared: nn.Module = self._accelerator.prepare_model(model)
        return prepared

    def accumulate(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Average gradients over the ranks in the `last` backward pass only."""
        return nullcontext() if last else self._accelerator.no_sync(model)

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in the run's precision."""
        return self._accelerator.autocast()

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` over all ranks, on every rank."""
        if self.world_size == 1:
            return tensor
        return self._accelerator.reduce(tensor, reduction="sum")

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank; all ranks must call it at the same places."""
        if self.world_size == 1:
            return flag
        flags = torch.tensor(float(flag))
        distributed.all_reduce(flags, op=distributed.ReduceOp.MAX, group=self._hosts)
        return bool(flags)

    def gather(self, value: Any) -> list[Any]:
        """Return the `value` of every rank, by rank."""
        return gather_object([value])

    def wait(self) -> None:
        """Wait for every rank."""
        self._accelerator.wait_for_everyone()

    def end(self) -> None:
        """Leave the process group; nothing may still hold a prepared model."""
        if self.world_size > 1:
            self._heartbeat.end()
        if not distributed.is_initialized():
            return
        # Free the wrapped model first: a process group that is freed last can wait for its own
        # thread forever.
        self._accelerator.free_memory()
        gc.unfreeze()
        gc.collect()
        self._accelerator.end_training()

    def facts(self) -> dict[str, Any]:
        """Return accelerate's resolved settings, for env.json."""
        return {
            "distributed_type": self._accelerator.distributed_type.name,
            "mixed_precision": self._accelerator.mixed_precision,
            "device": str(self.device),
            "num_processes": self.world_size,
        }

    def _check(self, device: str, precision: str, num_processes: int | str) -> None:
        started = f"but this launcher started {self.world_size}"
        found = f"torch finds no such device here, and gives {self.device}"
        backend = self._accelerator.state.dynamo_plugin.backend.name
        strategy = self._accelerator.distributed_type.name
        plain = "MULTI_GPU" if device == "cuda" else "MULTI_CPU"
        # torchrun may also start one process.
        is_plain = strategy == plain or (strategy == "NO" and self.world_size == 1)
        # Emulated bf16 is slower than fp32.
        can = precision == "fp32" or device == "cpu" or torch.cuda.is_bf16_supported(False)
        for holds, key, value, reason in [
            (self.world_size == num_processes, "launch.num_processes", num_processes, started),
            (self.device.type == device, "launch.device", device, found),
            (
                backend == "NO",
                "ACCELERATE_DYNAMO_BACKEND",
                backend,
                "must be unset: use train.compile",
            ),
            (is_plain, "accelerate's distributed_type", strategy, f"must be {plain}"),
            (can, "train.precision", precision, "this GPU has no bf16; use fp32"),
        ]:
            if not holds:
                raise ConfigError(key, value, reason)
