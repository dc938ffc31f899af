"""A training step on the ranks of a run: its learning rate, update and speed."""

import math
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from rope_exp.batches import chain_sha256, training_batch
from rope_exp.config import RunConfig
from rope_exp.corpus import Batch, DataSet
from rope_exp.costs import flops_per_token, peak_flops_per_s
from rope_exp.cuda_graphs import StepGraphs
from rope_exp.decoder import Decoder, on_device
from rope_exp.identity import import_choice
from rope_exp.optimizer import build_optimizer
from rope_exp.parallel import Parallel
from rope_exp.sections import ScheduleConfig


class ScheduleLeaf(Protocol):
    """A file of schedule/: the keys of a schedule, and its height above the last learning rate."""

    @property
    def Config(self) -> type[ScheduleConfig]: ...

    # `config` is the file's own Config.
    def height(self, config: Any, step: int, num_warmup_steps: int, num_steps: int) -> float:
        """Return a step's height: 1 at the peak learning rate, 0 at that of final_fraction.

        Args:
            config: the section `schedule` of the run's config.
            step: a step after the warm-up, counted from 1; the last is `num_steps`.
            num_warmup_steps: the number of steps in which the learning rate rises.
            num_steps: the number of steps of the run.
        """


def schedule_leaf(name: str) -> ScheduleLeaf:
    """Return the file of schedule/ that schedule.name names."""
    return cast("ScheduleLeaf", import_choice("schedule", name, "schedule.name"))


def learning_rate(step: int, config: RunConfig) -> float:
    """Return the learning rate of a step, counted from 1 to train.num_steps.

    It rises linearly over the warm-up to its peak, optim.lr, and then falls by the schedule's
    height to final_fraction * peak. The cosine's height is 0 at the last step.
    """
    num_steps = config.train.num_steps
    schedule = config.schedule
    warmup = config.num_warmup_steps
    if step <= warmup:
        return config.optim.lr * step / warmup

    if schedule.name == "cosine":
        done = (step - warmup) / (num_steps - warmup)
        height = 0.5 * (1 + math.cos(math.pi * done))
    else:
        height = schedule_leaf(schedule.name).height(schedule, step, warmup, num_steps)
    floor = schedule.final_fraction
    return config.optim.lr * (floor + (1 - floor) * height)


class Outcome(NamedTuple):
    """The outcome of a step, the same on every rank."""

    step: int
    loss: float  # the mean over the targets of the global batch, in the data's unit
    grad_norm: float
    first_bad_step: int  # 0: none so far
    order_before: str  # order_sha256 without this step


@dataclass
class TrainingStep:
    """Updates a model from the global batch of one step.

    Attributes:
        config: the run's config.
        decoder: the initialised model; it is moved to the device and prepared for training here.
        data: the run's data.
        parallel: the ranks of the run.
        should_stop: called before every micro-batch, or before a step that is one graph: equally
            often on every rank.
        order_sha256: the hash of the batches of all steps so far; on rank 0 only.
        first_bad_step: the first step whose loss or gradient is not finite, on the device; 0: none
            so far.
    """

    config: RunConfig
    decoder: Decoder
    data: DataSet
    parallel: Parallel
    should_stop: Callable[[], bool]
    order_sha256: str = ""

    def __post_init__(self) -> None:
        self.model: nn.Module = self.parallel.accelerator.prepare_model(self.decoder)
        self.optimizer = build_optimizer(self.decoder, self.config.optim)
        device = self.parallel.device
        self.first_bad_step = torch.zeros((), dtype=torch.int64, device=device)

        self.graphs: StepGraphs | None = None
        has_graphs = os.environ.get("ROPE_EXP_GRAPHS") != "0" and self.parallel.world_size == 1
        if has_graphs and device.type == "cuda":
            self.graphs = StepGraphs(
                self.config.name, self.update, self.optimizer, self.first_bad_step, self.decoder
            )

    def fix_bucket_order(self, step: int) -> None:
        """Make a pass over a step's first rows, and throw its gradients away.

        DistributedDataParallel reorders its buckets after its first average, and a sum of three or
        more ranks depends on the order: without this pass, a resume would not be exact.
        """
        inputs, *_ = self.get_batch(step)
        rows = next(inputs.split(self.config.train.rows_at_once(*inputs.ids_BT.shape)))
        self.model(rows.ids_BT, rows.target_BP, **rows.model_kwargs).backward()
        self.optimizer.zero_grad(set_to_none=True)

    def __call__(self, step: int) -> Callable[[], Outcome] | None:
        """Update the model once.

        Returns:
            A function that waits for the step's Outcome. None, with nothing updated, if a rank was
            asked to stop before the last micro-batch.
        """
        inputs, num_targets, order_sha256 = self.get_batch(step)
        lr = learning_rate(step, self.config)
        lrs = [lr * group.get("lr_multiple", 1.0) for group in self.optimizer.param_groups]

        numbers = None
        if self.graphs is not None:
            if self.should_stop():
                return None
            numbers = self._graph_step(inputs, step, num_targets, lrs)
        # Without graphs, or if these steps can make none, launch kernel by kernel.
        if self.graphs is None:
            numbers = self._eager_step(inputs, step, num_targets, lrs)
        if numbers is None:
            return None

        order_before = self.order_sha256
        self.order_sha256 = order_sha256
        # On a GPU, torch allocates pinned memory for this copy.
        on_host = numbers.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if numbers.is_cuda else None

        def read() -> Outcome:
            if copied is not None:
                copied.synchronize()
            loss, grad_norm, first_bad_step = on_host.tolist()
            return Outcome(step, loss, grad_norm, int(first_bad_step), order_before)

        return read

    def _graph_step(
        self, inputs: Batch, step: int, num_targets: int, lrs: Sequence[float]
    ) -> Tensor | None:
        """Make a step as a graph; if none can be made, update nothing and give up graphs."""
        assert self.graphs is not None
        numbers = self.graphs(inputs, step, num_targets, lrs)
        if numbers is None:
            self.graphs = None
        return numbers

    def _eager_step(
        self, inputs: Batch, step: int, num_targets: int, lrs: Sequence[float]
    ) -> Tensor | None:
        """Make a step kernel by kernel; return None if asked to stop."""
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        numbers = self.update(inputs, step, num_targets, self.should_stop)
        self.optimizer.zero_grad(set_to_none=True)
        return numbers

    def get_batch(self, step: int) -> tuple[Batch, int, str]:
        """Return this rank's rows, the targets of all ranks, and order_sha256 with this batch."""
        batch = training_batch(self.config, self.data, step)
        order_sha256 = ""
        if self.parallel.is_main:
            order_sha256 = chain_sha256(self.order_sha256, batch.hashed_BS)
        share = len(batch.ids_BT) // self.parallel.world_size
        mine = batch.rows(slice(self.parallel.rank * share, (self.parallel.rank + 1) * share))
        return on_device(mine, self.parallel.device), batch.num_targets, order_sha256

    def update(
        self,
        inputs: Batch,
        step: int | Tensor,
        num_targets: int | Tensor,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Tensor | None:
        """Add the gradients of all micro-batches to those there are, and update the model.

        A CUDA graph is captured from this, so nothing here may read a tensor on the host.

        Args:
            inputs: this rank's rows of the global batch, on the device.
            step: the number of the step, which first_bad_step becomes if the step is bad.
            num_targets: the number of targets of all ranks.
            should_stop: asked before every micro-batch.
        Returns:
            [loss, grad_norm, first_bad_step] in float64, on the device; None, with nothing updated,
            if `should_stop` said so.
        """
        # Nats are summed over all ranks' targets, but the wrapped model averages over the ranks.
        scale = self.parallel.world_size / num_targets
        loss = torch.zeros((), device=self.parallel.device)
        micro_batches = list(inputs.split(self.config.train.rows_at_once(*inputs.ids_BT.shape)))
        for number, rows in enumerate(micro_batches, start=1):
            if should_stop():
                return None
            # The last backward pass averages the gradients of all of them over the ranks.
            is_last = number == len(micro_batches)
            with nullcontext() if is_last else self.parallel.accelerator.no_sync(self.model):
                nats = self.model(rows.ids_BT, rows.target_BP, **rows.model_kwargs)
                (nats * scale).backward()
            loss += nats.detach()

        loss = self.parallel.sum(loss / num_targets)
        norm = nn.utils.clip_grad_norm_(self.decoder.parameters(), self.config.optim.grad_clip)
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        first = is_bad & (self.first_bad_step == 0)
        self.first_bad_step.copy_(torch.where(first, step, self.first_bad_step))

        # From the first bad step on, the optimizer changes no weight, moment or count of steps.
        self.optimizer.found_inf = (self.first_bad_step > 0).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        return torch.stack([loss.double(), norm.double(), self.first_bad_step.double()])


# The first timed steps, which a run's speed excludes: they compile, and access memory first.
EXCLUDED_STEPS = 10


class Throughput:
    """Times steps from the end of one to the end of the next, except the step after a pause.

    Steps of all sequence lengths count equally: medians are over seconds per token and seconds per
    operation.

    Args:
        config: the run's config.
        vocab_size: the ids of the tokenizer, from which the operations of a token are counted.
        device: the device of this rank; only a GPU has a peak, and thus an mfu.
    """

    def __init__(self, config: RunConfig, vocab_size: int, device: torch.device) -> None:
        # By sequence length; 1 on a CPU.
        self.flops_per_token = {stage.seq_len: 1 for stage in config.train.staged}
        # Dense bf16, of all ranks' devices together; None if unknown, and on a CPU.
        self.peak_flops_per_s: float | None = None
        if device.type == "cuda":
            for length in self.flops_per_token:
                self.flops_per_token[length] = flops_per_token(config, vocab_size, length)
            peak = peak_flops_per_s(torch.cuda.get_device_name(device))
            if config.train.peak_tflops is not None:
                peak = config.train.peak_tflops * 1e12
            if peak:
                self.peak_flops_per_s = peak * int(config.launch.num_processes)
        # The seconds per token and per operation of each timed step.
        self._timed: list[tuple[float, float]] = []
        # How many threads each of the last timed steps kept busy.
        self._busy: deque[float] = deque(maxlen=EXCLUDED_STEPS)
        self._last_end: float | None = None
        self._last_cpu_s = 0.0

    def step(self, num_tokens: int, seq_len: int) -> None:
        """Record the end of a step, with its tokens over all ranks and its sequence length."""
        now = time.perf_counter()
        cpu_s = time.process_time()
        if self._last_end is not None:
            per_token = (now - self._last_end) / num_tokens
            self._timed.append((per_token, per_token / self.flops_per_token[seq_len]))
            self._busy.append((cpu_s - self._last_cpu_s) / (now - self._last_end))
        self._last_end = now
        self._last_cpu_s = cpu_s

    def pause(self) -> None:
        """Exclude the time until the next step ends."""
        self._last_end = None

    def speed(self, num_steps: int | None = None) -> dict[str, float | None]:
        """Return the medians of tokens_per_s and mfu, each None if unknown.

        They are over the last `num_steps` timed steps; None: over all after the first
        EXCLUDED_STEPS, or over all if there are no more.
        """
        timed = self._timed[EXCLUDED_STEPS:] or self._timed
        if num_steps is not None:
            timed = self._timed[-num_steps:]
        if not timed:
            return {"tokens_per_s": None, "mfu": None}

        per_token, per_flop = map(statistics.median, zip(*timed, strict=True))
        mfu = None
        if self.peak_flops_per_s is not None:
            mfu = 1 / per_flop / self.peak_flops_per_s
            if mfu > 1:
                # More than the peak is a wrong peak.
                mfu = None
        return {"tokens_per_s": 1 / per_token, "mfu": mfu}

    def busy_threads(self) -> float | None:
        """Return how many threads the last steps kept busy, as a median; None: too few steps."""
        if len(self._timed) < 2 * EXCLUDED_STEPS:
            return None
        return statistics.median(self._busy)
