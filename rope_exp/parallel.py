"""The ranks of one run, by accelerate and torch.distributed."""

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import gather_object
from torch import Tensor, distributed, nn

from rope_exp.errors import ConfigError
from rope_exp.identity import choices, chosen


class Parallel:
    """This process among the ranks of its run; rank 0 (`is_main`) writes the run's record.

    Launchers have started fewer processes or chosen another strategy than requested, so a world
    other than that of launch.device, train.precision and launch.num_processes is a ConfigError.
    """

    def __init__(self, device: str, precision: str, num_processes: int | str) -> None:
        self.accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision="bf16" if precision == "bf16" else "no",
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        self.is_main = self.rank == 0
        self.device: torch.device = self.accelerator.device
        self._check(device, precision, num_processes)

        self._heartbeats = []
        if self.world_size > 1:
            # On the host: a question to the other ranks must not wait for the device.
            self._hosts = distributed.new_group(backend="gloo")
            for name in choices("heartbeat"):
                self._heartbeats.append(chosen("heartbeat", name, "heartbeat").Heartbeat())

    def _check(self, device: str, precision: str, num_processes: int | str) -> None:
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

    def accumulate(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Average gradients over the ranks in the `last` backward pass only."""
        return nullcontext() if last else self.accelerator.no_sync(model)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` over all ranks, on every rank."""
        return self.accelerator.reduce(tensor, reduction="sum")

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

    def end(self) -> None:
        """Leave the process group; nothing may still hold a prepared model."""
        for heartbeat in self._heartbeats:
            heartbeat.end()
        if not distributed.is_initialized():
            return
        # Free the wrapped model first: a process group that is freed last can wait for its own
        # thread forever.
        self.accelerator.free_memory()
        gc.unfreeze()
        gc.collect()
        self.accelerator.end_training()
