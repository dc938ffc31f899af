"""A training step as one CUDA graph, which the host launches with one call.

Launched kernel by kernel, a step of a small model waits for the host. A graph repeats recorded
kernels on recorded addresses, so whatever a step reads or writes stays in place: weights, moments,
gradients, inputs, and the numbers that differ from step to step. Only `_captured` needs a GPU.
"""

import gc
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rope_exp.evaluation.inputs import Inputs
from rope_exp.system.errors import first_line
from rope_exp.training.optim import make_state

# Steps before a capture, and before the one that shows whether a step waits for the device: they
# compile, and let libraries choose their kernels.
WARMUP_STEPS = 2

# Takes the inputs, the step's number and the number of targets; returns [loss, grad_norm,
# first_bad_step] in float64.
Update = Callable[[Inputs, Tensor, Tensor], Tensor]


class CaptureError(Exception):
    """A step that cannot become a graph: it reads a tensor on the host, or fails."""


class StepGraphs:
    """Repeats a training step from one graph for each shape of its inputs.

    Attributes:
        update: computes gradients, which it adds to those there are, and updates the weights.
        optimizer: its learning rates become tensors.
        model: that it updates.
        first_bad_step: of the run, on the device; with it above 0, an update changes nothing.
    """

    def __init__(
        self, update: Update, optimizer: Optimizer, model: nn.Module, first_bad_step: Tensor
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
            self._outcome.copy_(self.update(static, self._step, self._num_targets))

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
