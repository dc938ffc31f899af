"""The parts of a training step: its learning rate, optimizer, and speed, and its graph on a GPU."""

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp import costs
from rope_exp.config import RunConfig
from rope_exp.decoder import FREQUENCIES, POSITIONS, Decoder, Inputs
from rope_exp.errors import first_line
from rope_exp.identity import chosen
from rope_exp.sections import OptimConfig


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
        leaf = chosen("schedule", schedule.name, "schedule.name")
        height = leaf.height(schedule, step, warmup, num_steps)
    floor = schedule.final_fraction
    return config.optim.lr * (floor + (1 - floor) * height)


# Stored beside a parameter's moments: how often each of its elements has crossed 0.
CROSSINGS = "crossings"


def build_optimizer(decoder: Decoder, config: OptimConfig) -> Optimizer:
    """Return fused AdamW, or the optimizer of optim/.

    Weight decay applies to matrices, but not to vectors (norms, decays) or position parameters.
    Frequencies have their own learning rate, a multiple of the others'. If they are learned
    directly and not as logarithms, the optimizer counts how often each crosses 0.
    """
    rate = decoder.architecture.pe.trainable_lr
    decaying: dict[str, Any] = {"params": [], "weight_decay": config.weight_decay}
    staying: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    frequencies: dict[str, Any] = {"params": [], "weight_decay": 0.0, "rate": rate}
    for name, parameter in decoder.named_parameters():
        group = decaying
        if name.startswith(FREQUENCIES):
            group = frequencies
        elif parameter.ndim < 2 or name.startswith(POSITIONS):
            group = staying
        group["params"].append(parameter)
    groups = [decaying, staying] + [frequencies] * bool(frequencies["params"])

    optimizer: Optimizer
    if config.name == "adamw":
        optimizer = AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    else:
        leaf = chosen("optim", config.name, "optim.name")
        optimizer = leaf.Optimizer(decoder, groups, config)
    if decoder.architecture.pe.trainable == "log":
        return optimizer

    # Sign changes are counted on the device, in the optimizer's state, so that a checkpoint holds
    # them with the moments; 0 counts as positive.
    were_below: dict[nn.Parameter, Tensor] = {}

    def look(*_: object) -> None:
        were_below.update({parameter: parameter < 0 for parameter in frequencies["params"]})

    def count(*_: object) -> None:
        for parameter, was_below in were_below.items():
            state = optimizer.state[parameter]
            if CROSSINGS not in state:
                state[CROSSINGS] = torch.zeros_like(parameter, dtype=torch.int64)
            state[CROSSINGS] += was_below != (parameter < 0)

    if frequencies["params"]:
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


UNTIMED_STEPS = 10  # excluded from a run's speed: compilation, first memory accesses


@dataclass
class Throughput:
    """Times steps from the end of one to the end of the next, except the step after a pause.

    Steps of all sequence lengths count equally: medians are over seconds per token and seconds per
    operation. `flops_per_token` is by sequence length, and the peak of all ranks' devices together.
    """

    flops_per_token: Mapping[int, int]
    peak_flops_per_s: float | None
    # The seconds per token and per operation of each timed step.
    _timed: list[tuple[float, float]] = field(default_factory=list)
    _last_end: float | None = None

    def step(self, num_tokens: int, seq_len: int) -> None:
        """Record the end of a step, with its tokens over all ranks and its sequence length."""
        now = time.perf_counter()
        if self._last_end is not None:
            per_token = (now - self._last_end) / num_tokens
            self._timed.append((per_token, per_token / self.flops_per_token[seq_len]))
        self._last_end = now

    def pause(self) -> None:
        """Exclude the time until the next step ends."""
        self._last_end = None

    def speed(self, num_steps: int | None = None) -> dict[str, float | None]:
        """Return the median tokens_per_s and mfu of the last timed steps; None if there are none.

        Without `num_steps`, these are all after warm-up, or all of a shorter run.
        """
        timed = self._timed[UNTIMED_STEPS:] or self._timed
        if num_steps is not None:
            timed = self._timed[-num_steps:]
        if not timed:
            return {"tokens_per_s": None, "mfu": None}
        per_token, per_flop = map(statistics.median, zip(*timed, strict=True))
        peak = self.peak_flops_per_s
        mfu = 1 / per_flop / peak if peak else None
        # More than the peak is a wrong peak.
        return {"tokens_per_s": 1 / per_token, "mfu": None if mfu is None or mfu > 1 else mfu}


def peak_flops_per_s(device: torch.device, count: int, given_tflops: float | None) -> float | None:
    """Return the dense bf16 peak of `count` such devices; None if unknown, and on a CPU.

    `given_tflops` is the config's peak of one device; 0: unknown; None: use the table of peaks.
    """
    if device.type != "cuda":
        return None
    peak = costs.peak_flops_per_s(torch.cuda.get_device_name(device))
    if given_tflops is not None:
        peak = given_tflops * 1e12
    return peak * count if peak else None


# Steps before a capture, and before the one that shows whether a step waits for the device: they
# compile, and let libraries choose their kernels.
WARMUP_STEPS = 2


class CaptureError(Exception):
    """A step that cannot become a graph: it reads a tensor on the host, or fails."""


class StepGraphs:
    """Repeats the update of a TrainingStep from one graph for each shape of its inputs.

    The optimizer's learning rates become tensors.
    """

    def __init__(self, step: Any) -> None:
        self.update: Callable[[Inputs, Tensor, Tensor], Tensor | None] = step.update
        self.optimizer: Optimizer = step.optimizer
        self.first_bad_step: Tensor = step.first_bad_step
        self.model: nn.Module = step.decoder

        # The tensors that stay in place, besides weights, moments and inputs. The gradients are
        # kept here, so that nobody who drops a parameter's gradient frees what a graph writes.
        device = self.first_bad_step.device
        self._gradients: list[Tensor] = []
        self._rates = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._num_targets = torch.zeros((), device=device)
        self._outcome = torch.zeros(3, dtype=torch.float64, device=device)

        self._graphs: dict[tuple[torch.Size | None, ...], tuple[Inputs, Callable[[], None]]] = {}
        # The graphs share their memory: none runs beside another, or reads what another left.
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None

    def __call__(
        self, inputs: Inputs, step: int, num_targets: int, rates: Sequence[float]
    ) -> Tensor:
        """Make one step from the inputs of all micro-batches; return a copy of its outcome.

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
        self._side = side = self._side or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
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
            torch.cuda.set_sync_debug_mode("default")
            # After an error, too: what was launched must not see another first bad step.
            torch.cuda.current_stream().wait_stream(side)

        graph = torch.cuda.CUDAGraph()
        groups = self.optimizer.param_groups
        for group in groups:
            group["capturable"] = True
        # To collect compiled kernels during a capture would unload them, which is illegal then.
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=side):
                launch()
        except RuntimeError as error:
            advice = "ROPE_EXP_GRAPHS=0 trains without CUDA graphs"
            raise RuntimeError(f"capturing a step failed: {first_line(error)}; {advice}") from error
        finally:
            gc.enable()
            # Otherwise AdamW warns about the next steps before a capture.
            for group in groups:
                group["capturable"] = False
        self._pool = graph.pool()
        return graph.replay
