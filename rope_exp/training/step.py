"""One training step, from top to bottom: get the batch, forward, backward, update.

Everything that affects a number is a pure function of the step (its batch, its learning rate) or
is stored in the checkpoint, so resuming takes one integer.

The step never waits for the device: its outcome (loss, gradient norm, first bad step) is read
later, from `Started`. An update with a non-finite loss or gradient is skipped on the device, as is
every update after it, so reading late cannot let a bad update through.

One process on a GPU makes a step as one CUDA graph (rope_exp.training.graph), unless the
environment says ROPE_EXP_GRAPHS=0.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rope_exp.config.run import RunConfig
from rope_exp.data.batches import chain_sha256
from rope_exp.data.generated import DataSet
from rope_exp.data.sources import training_batch
from rope_exp.evaluation.inputs import Inputs, on_device
from rope_exp.model.decoder import Decoder
from rope_exp.system.console import log
from rope_exp.training.graph import CaptureError, StepGraphs
from rope_exp.training.optim import build_optimizer
from rope_exp.training.parallel import Parallel
from rope_exp.training.schedule import learning_rate


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step, the same on every rank."""

    step: int
    loss: float  # the mean over the targets of the global batch, in the data's unit
    grad_norm: float
    first_bad_step: int  # 0: none so far
    order_before: str  # order_sha256 without this step


@dataclass
class Started:
    """A started step; the device copies its outcome to the host once it is computed.

    Attributes:
        step: its number.
        outcome: [loss, grad_norm, first_bad_step], on the host once the copy has ended.
        order_before: order_sha256 without this step.
    """

    step: int
    outcome: Tensor
    order_before: str
    _copied: torch.cuda.Event | None = None

    def __post_init__(self) -> None:
        if self.outcome.device.type == "cuda":
            # torch allocates pinned memory for this copy.
            self.outcome = self.outcome.to("cpu", non_blocking=True)
            self._copied = torch.cuda.current_stream().record_event()

    def read(self) -> Outcome:
        """Wait for the device to finish the step, and return its outcome."""
        if self._copied is not None:
            self._copied.synchronize()
        loss, grad_norm, first_bad_step = self.outcome.tolist()
        return Outcome(self.step, loss, grad_norm, int(first_bad_step), self.order_before)


@dataclass
class TrainingStep:
    """Updates a model from the global batch of one step.

    Attributes:
        decoder: initialised; it is moved to the device and prepared for training here.
        should_stop: called before every micro-batch, and equally often on every rank; before a step
            that is one graph, once.
        order_sha256: hash of the batches of all steps so far; on rank 0 only.
        first_bad_step: on the device; 0: none so far.
        graphs: make a step as one graph; None: it is launched kernel by kernel.
    """

    config: RunConfig
    decoder: Decoder
    data: DataSet
    parallel: Parallel
    should_stop: Callable[[], bool]
    order_sha256: str = ""

    def __post_init__(self) -> None:
        self.model = self.parallel.prepare(self.decoder)
        self.optimizer = build_optimizer(self.decoder, self.config.optim)
        self.first_bad_step = torch.zeros((), dtype=torch.int64, device=self.parallel.device)
        self.graphs: StepGraphs | None = None
        can_capture = os.environ.get("ROPE_EXP_GRAPHS") != "0" and self.parallel.world_size == 1
        if self.parallel.device.type == "cuda" and can_capture:
            self.graphs = StepGraphs(self.update, self.optimizer, self.decoder, self.first_bad_step)

    def __call__(self, step: int) -> Started | None:
        """Update the model once from the global batch of `step`.

        Returns:
            The started step; or None, with nothing updated, if a rank was asked to stop before the
            last micro-batch.
        """
        inputs, num_targets, order_sha256 = self._get_batch(step)
        make_step = self._launch if self.graphs is None else self._replay
        outcome = make_step(inputs, step, num_targets)
        if outcome is None:
            return None

        started = Started(step, outcome, order_before=self.order_sha256)
        self.order_sha256 = order_sha256
        return started

    def update(self, inputs: Inputs, step: Tensor, num_targets: Tensor) -> Tensor:
        """Update the model from inputs, as a graph records it: no number is the host's.

        Returns:
            [loss, grad_norm, first_bad_step] in float64, on the device.
        """
        loss = self._backward(inputs, num_targets, should_stop=lambda: False)
        assert loss is not None
        return self._apply(loss, step, num_targets)

    def _replay(self, inputs: Inputs, step: int, num_targets: int) -> Tensor | None:
        """Make a step as one graph, or kernel by kernel from now on if it cannot be captured."""
        assert self.graphs is not None
        if self.should_stop():
            return None
        try:
            return self.graphs(inputs, step, num_targets, self._rates(step))
        except CaptureError as error:
            log(f"{self.config.name}: steps are launched kernel by kernel, not as a graph: {error}")

        self.graphs = None
        self.optimizer.zero_grad(set_to_none=True)
        return self._launch(inputs, step, num_targets)

    def _launch(self, inputs: Inputs, step: int, num_targets: int) -> Tensor | None:
        """Make a step kernel by kernel; None, with nothing updated, if asked to stop."""
        for group, rate in zip(self.optimizer.param_groups, self._rates(step), strict=True):
            group["lr"] = rate
        loss = self._backward(inputs, num_targets, self.should_stop)
        outcome = None if loss is None else self._apply(loss, step, num_targets)
        self.optimizer.zero_grad(set_to_none=True)
        return outcome

    def _backward(
        self, inputs: Inputs, num_targets: int | Tensor, should_stop: Callable[[], bool]
    ) -> Tensor | None:
        """Add the gradients of all micro-batches, and return this rank's summed nats.

        The loss is the mean over the targets of the global batch: each micro-batch gives summed
        nats, divided by the global count. The wrapped model averages gradients over the ranks,
        hence the factor `world_size`.

        Returns:
            None if asked to stop before a micro-batch.
        """
        scale = self.parallel.world_size / num_targets
        loss = torch.zeros((), device=self.parallel.device)
        rows_at_once = self.config.train.rows_at_once(*inputs.ids_BT.shape)
        micro_batches = list(inputs.split(rows_at_once))
        for number, micro_batch in enumerate(micro_batches, start=1):
            if should_stop():
                return None
            with self.parallel.accumulate(self.model, last=number == len(micro_batches)):
                nats = micro_batch.nats(self.model)
                (nats * scale).backward()  # type: ignore[no-untyped-call]
            loss += nats.detach()
        return loss

    def _apply(self, loss: Tensor, step: int | Tensor, num_targets: int | Tensor) -> Tensor:
        """Update the weights from their gradients, and return `update`'s outcome."""
        loss = self.parallel.sum(loss / num_targets)
        norm = nn.utils.clip_grad_norm_(self.decoder.parameters(), self.config.optim.grad_clip)
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        first = is_bad & (self.first_bad_step == 0)
        self.first_bad_step.copy_(torch.where(first, step, self.first_bad_step))

        # In a bad step, the fused kernel leaves weights, moments and its step count unchanged.
        self.optimizer.found_inf = (self.first_bad_step > 0).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        return torch.stack([loss.double(), norm.double(), self.first_bad_step.double()])

    def _rates(self, step: int) -> list[float]:
        """Return the learning rate of each of the optimizer's groups."""
        rate = learning_rate(step, self.config)
        return [rate * group.get("rate", 1.0) for group in self.optimizer.param_groups]

    def settle(self, step: int) -> None:
        """Let the ranks settle in which order they average gradients, by a pass thrown away.

        DistributedDataParallel reorders its buckets once, after its first average, and a sum of
        three or more ranks depends on the order. So the first step of a process would be rounded
        otherwise than the same step of a longer one, and a resume would not be exact.
        """
        if self.parallel.world_size > 2:
            inputs, *_ = self._get_batch(step)
            first = next(inputs.split(self.config.train.rows_at_once(*inputs.ids_BT.shape)))
            first.nats(self.model).backward()  # type: ignore[no-untyped-call]
            self.optimizer.zero_grad(set_to_none=True)

    def _get_batch(self, step: int) -> tuple[Inputs, int, str]:
        """Return this rank's rows, the targets of all ranks, and order_sha256 with this batch."""
        batch = training_batch(self.config, self.data, step)
        order_sha256 = ""
        if self.parallel.is_main:
            order_sha256 = chain_sha256(self.order_sha256, batch.hashed_BS)
        share = len(batch.ids_BT) // self.parallel.world_size
        mine = batch.rows(slice(self.parallel.rank * share, (self.parallel.rank + 1) * share))
        return on_device(mine, self.parallel.device), batch.num_targets, order_sha256
