"""A training step: its learning rate, the optimizer, and the update, as one graph on a GPU."""

import gc
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.batches import chain_sha256
from rope_exp.config import RunConfig
from rope_exp.decoder import FREQUENCIES, POSITIONS, Decoder
from rope_exp.errors import first_line, log
from rope_exp.evaluate import Inputs, on_device
from rope_exp.generated import DataSet
from rope_exp.identity import chosen
from rope_exp.parallel import Parallel
from rope_exp.sections import OptimConfig
from rope_exp.sources import training_batch


def learning_rate(step: int, config: RunConfig) -> float:
    """Return the learning rate of `step`, a pure function of it.

    It rises linearly over the warm-up to its peak, optim.lr, and then falls by the schedule's
    height to final_fraction * peak. The cosine's height falls along half a cosine, and is 0 at the
    last step.

    Args:
        step: counted from 1 to train.num_steps.
    """
    num_steps = config.train.num_steps
    peak = config.optim.lr
    schedule = config.schedule
    warmup = config.num_warmup_steps
    if step <= warmup:
        return peak * step / warmup

    if schedule.name == "cosine":
        done = (step - warmup) / (num_steps - warmup)
        height = 0.5 * (1 + math.cos(math.pi * done))
    else:
        own = chosen("schedule", schedule.name, "schedule.name")
        height = own.height(schedule, step, warmup, num_steps)
    floor = schedule.final_fraction
    return peak * (floor + (1 - floor) * height)


# Stored beside a parameter's moments: how often each of its elements has crossed 0.
CROSSINGS = "crossings"


def build_optimizer(decoder: Decoder, config: OptimConfig) -> Optimizer:
    """Return fused AdamW, or the optimizer of optim/.

    Weight decay applies to matrices, but not to vectors (norms, decays) or position parameters.
    Frequencies have their own learning rate, a multiple of the others'. If they are learned
    directly and not as logarithms, the optimizer counts how often each crosses 0.
    """
    frequencies = []
    decaying = []
    staying = []
    for name, parameter in decoder.named_parameters():
        if name.startswith(FREQUENCIES):
            frequencies.append(parameter)
        elif parameter.ndim >= 2 and not name.startswith(POSITIONS):
            decaying.append(parameter)
        else:
            staying.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": staying, "weight_decay": 0.0},
    ]
    if frequencies:
        rate = decoder.architecture.pe.trainable_lr
        groups.append({"params": frequencies, "weight_decay": 0.0, "rate": rate})

    optimizer: Optimizer
    if config.name == "adamw":
        optimizer = AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    else:
        own = chosen("optim", config.name, "optim.name")
        optimizer = own.Optimizer(decoder, groups, config)

    rotary = decoder.model.rotary_emb
    if not rotary.learned or rotary.pe.trainable == "log":
        return optimizer

    # Sign changes are counted on the device, in the optimizer's state, so that a checkpoint holds
    # them with the moments; 0 counts as positive.
    were_below: dict[nn.Parameter, Tensor] = {}

    def look(*_: object) -> None:
        were_below.update({parameter: parameter < 0 for parameter in frequencies})

    def count(*_: object) -> None:
        for parameter, was_below in were_below.items():
            state = optimizer.state[parameter]
            if CROSSINGS not in state:
                state[CROSSINGS] = torch.zeros_like(parameter, dtype=torch.int64)
            state[CROSSINGS] += was_below != (parameter < 0)

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(count)
    return optimizer


def crossings(optimizer: Optimizer, decoder: Decoder) -> dict[str, Tensor]:
    """Return how often each learned frequency has crossed 0, for each pair that is counted."""
    rotary = decoder.model.rotary_emb
    states = {
        pair: optimizer.state[rotary.get_parameter(name)] for pair, name in rotary.learned.items()
    }
    return {pair: state[CROSSINGS] for pair, state in states.items() if CROSSINGS in state}


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<moment>`; {} before the first step."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimizer.state[parameter].items():
            tensors[f"{name}.{moment}"] = tensor
    return tensors


def make_state(optimizer: Any, model: nn.Module) -> None:
    """Create an optimizer's state, so that it can be loaded, by a step that updates nothing."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.found_inf = torch.ones((), device=parameter.device)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    optimizer.found_inf = None


# Steps before a capture, and before the one that shows whether a step waits for the device: they
# compile, and let libraries choose their kernels.
WARMUP_STEPS = 2


class CaptureError(Exception):
    """A step that cannot become a graph: it reads a tensor on the host, or fails."""


class StepGraphs:
    """Repeats a training step from one graph for each shape of its inputs.

    Attributes:
        update: `TrainingStep.update`.
        optimizer: its learning rates become tensors.
        model: that it updates.
        first_bad_step: of the run, on the device; with it above 0, an update changes nothing.
    """

    def __init__(
        self,
        update: Callable[[Inputs, Tensor, Tensor], Tensor | None],
        optimizer: Optimizer,
        model: nn.Module,
        first_bad_step: Tensor,
    ) -> None:
        self.update = update
        self.optimizer = optimizer
        self.model = model
        self.first_bad_step = first_bad_step

        # The tensors that stay in place, besides weights, moments and inputs. The gradients are
        # kept here, so that nobody who drops a parameter's gradient frees what a graph writes.
        device = first_bad_step.device
        self._gradients: list[Tensor] = []
        self._rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._num_targets = torch.zeros((), device=device)
        self._outcome = torch.zeros(3, dtype=torch.float64, device=device)

        self._graphs: dict[tuple[torch.Size | None, ...], tuple[Inputs, Callable[[], None]]] = {}
        self._first_graph: torch.cuda.CUDAGraph | None = None
        self._side: torch.cuda.Stream | None = None

    def __call__(
        self, inputs: Inputs, step: int, num_targets: int, rates: Sequence[float]
    ) -> Tensor:
        """Make one step, and return a copy of its outcome.

        Args:
            inputs: of all micro-batches.
            num_targets: in all inputs.
            rates: the learning rate of each of the optimizer's groups.
        Raises:
            CaptureError: at the first step of a shape, before a capture; nothing was updated.
            RuntimeError: the capture failed, which may leave torch's allocator unusable.
        """
        # A number is an argument of the kernel that writes it, so the host waits for none.
        self._step.fill_(step)
        self._num_targets.fill_(num_targets)
        for tensor, rate in zip(self._rates, rates, strict=True):
            tensor.fill_(rate)

        shapes = tuple(None if tensor is None else tensor.shape for tensor in inputs)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._recorded(inputs)
        static, launch = self._graphs[shapes]
        for mine, given in zip(static, inputs, strict=True):
            if mine is not None and given is not None:
                mine.copy_(given)

        launch()
        return self._outcome.clone()

    def _recorded(self, inputs: Inputs) -> tuple[Inputs, Callable[[], None]]:
        """Return static inputs, and a function that makes a step from them."""
        static = Inputs(*(None if x is None else x.clone() for x in inputs))  # type: ignore[arg-type]
        parameters = list(self.model.parameters())
        if not self._gradients:
            # Before the first activations, whose memory could not be returned for the graph's own
            # if a moment lay in the middle of it.
            if not self.optimizer.state:
                make_state(self.optimizer, self.model)
            self._gradients = [torch.zeros_like(parameter) for parameter in parameters]
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate

        def launch() -> None:
            for parameter, gradient in zip(parameters, self._gradients, strict=True):
                parameter.grad = gradient
            torch._foreach_zero_(self._gradients)
            outcome = self.update(static, self._step, self._num_targets)
            assert outcome is not None
            self._outcome.copy_(outcome)

        # After a bad step no update changes anything, nor do the steps before the capture.
        first_bad_step = self.first_bad_step.clone()
        self.first_bad_step.fill_(1)
        try:
            return static, self._captured(launch)
        finally:
            self.first_bad_step.copy_(first_bad_step)

    def _captured(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats `launch` as a graph."""
        # Off the default stream, as capturing is, and on the stream of the captures: autograd adds
        # up gradients on the stream on which it first met a parameter.
        self._side = self._side or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side = self._side
        side.wait_stream(torch.cuda.current_stream())
        mode = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(side):
                for _ in range(WARMUP_STEPS):
                    launch()
                # A capture that fails may leave torch's allocator unusable, so a wait for the
                # device, which no graph can hold, must fail before it.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that the mode does not detect every wait
                    torch.cuda.set_sync_debug_mode("error")
                launch()
        except RuntimeError as error:
            raise CaptureError(first_line(error)) from error
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            # After an error, too: what was launched must not see another first bad step.
            torch.cuda.current_stream().wait_stream(side)

        # The graphs share their memory: none runs beside another, and none reads what another left
        # there.
        pool = None if self._first_graph is None else self._first_graph.pool()
        graph = torch.cuda.CUDAGraph()
        groups = self.optimizer.param_groups
        for group in groups:
            group["capturable"] = True
        # To collect compiled kernels during a capture would unload them, which is illegal then.
        gc.collect()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=side):
                launch()
        except RuntimeError as error:
            advice = "ROPE_EXP_GRAPHS=0 trains without CUDA graphs"
            raise RuntimeError(f"capturing a step failed: {first_line(error)}; {advice}") from error
        finally:
            if was_enabled:
                gc.enable()
            # Otherwise AdamW warns about the next steps before a capture.
            for group in groups:
                group["capturable"] = False
        self._first_graph = self._first_graph or graph
        replay: Callable[[], None] = graph.replay
        return replay


@dataclass(frozen=True)
class Outcome:
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

    def __call__(self, step: int) -> Callable[[], Outcome] | None:
        """Update the model once from the global batch of `step`.

        Returns:
            A function that waits for the device to finish the step, and returns its outcome; or
            None, with nothing updated, if a rank was asked to stop before the last micro-batch.
        """
        inputs, num_targets, order_sha256 = self._get_batch(step)
        make_step = self._launch if self.graphs is None else self._replay
        outcome = make_step(inputs, step, num_targets)
        if outcome is None:
            return None

        order_before = self.order_sha256
        self.order_sha256 = order_sha256
        # On a GPU, torch allocates pinned memory for this copy.
        on_host = outcome.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if outcome.is_cuda else None

        def read() -> Outcome:
            if copied is not None:
                copied.synchronize()
            loss, grad_norm, first_bad_step = on_host.tolist()
            return Outcome(step, loss, grad_norm, int(first_bad_step), order_before)

        return read

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
        outcome = self.update(inputs, step, num_targets, self.should_stop)
        self.optimizer.zero_grad(set_to_none=True)
        return outcome

    def update(
        self,
        inputs: Inputs,
        step: int | Tensor,
        num_targets: int | Tensor,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Tensor | None:
        """Update the model from the inputs of all micro-batches, added to the gradients there are.

        The loss is the mean over the targets of the global batch: each micro-batch gives summed
        nats, divided by the global count. The wrapped model averages gradients over the ranks,
        hence the factor `world_size`. In a graph, no number is the host's.

        Returns:
            [loss, grad_norm, first_bad_step] in float64, on the device; or None if asked to stop
            before a micro-batch.
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
