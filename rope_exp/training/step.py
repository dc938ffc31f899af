"""One training step, from top to bottom: get the batch, forward, backward, update.

Everything that affects a number is a pure function of the step (its batch, its learning rate) or
is stored in the checkpoint, so resuming takes one integer.

The step never waits for the device: its outcome (loss, gradient norm, first bad step) is read
later, from `Started`. An update with a non-finite loss or gradient is skipped on the device, as is
every update after it, so reading late cannot let a bad update through.
"""

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
        should_stop: called before every micro-batch, and equally often on every rank.
        order_sha256: hash of the batches of all steps so far; on rank 0 only.
        first_bad_step: on the device; 0: none so far.
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

    def __call__(self, step: int) -> Started | None:
        """Update the model once from the global batch of `step`.

        The loss is the mean over the targets of the global batch: each micro-batch gives summed
        nats, divided by the global count. The wrapped model averages gradients over the ranks,
        hence the factor `world_size`.

        Returns:
            The started step; or None, with nothing updated, if a rank was asked to stop before the
            last micro-batch.
        """
        inputs, num_targets, order_sha256 = self._get_batch(step)

        # Forward and backward, one micro-batch after another.
        scale = self.parallel.world_size / num_targets
        loss = torch.zeros((), device=self.parallel.device)
        rows_at_once = self.config.train.rows_at_once(*inputs.ids_BT.shape)
        micro_batches = list(inputs.split(rows_at_once))
        for number, micro_batch in enumerate(micro_batches, start=1):
            if self.should_stop():
                self.optimizer.zero_grad(set_to_none=True)
                return None
            with self.parallel.accumulate(self.model, last=number == len(micro_batches)):
                nats = micro_batch.nats(self.model)
                (nats * scale).backward()  # type: ignore[no-untyped-call]
            loss += nats.detach()

        loss = self.parallel.sum(loss / num_targets)
        norm = nn.utils.clip_grad_norm_(self.decoder.parameters(), self.config.optim.grad_clip)
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        first = is_bad & (self.first_bad_step == 0)
        self.first_bad_step = torch.where(first, step, self.first_bad_step)

        # In a bad step, the fused kernel leaves weights, moments and its step count unchanged.
        self.optimizer.found_inf = (self.first_bad_step > 0).float()  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config) * group.get("rate", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

        outcome = torch.stack([loss.double(), norm.double(), self.first_bad_step.double()])
        started = Started(step, outcome, order_before=self.order_sha256)
        self.order_sha256 = order_sha256
        return started

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
