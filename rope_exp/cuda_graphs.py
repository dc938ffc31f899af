"""Training steps as CUDA graphs: one launch a step in place of one for each kernel."""

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rope_exp.corpus import Batch
from rope_exp.errors import first_line, log
from rope_exp.optimizer import make_state

# Steps before the sync check, and so before the capture. They compile and choose kernels.
WARMUP_STEPS = 2


class CaptureError(Exception):
    """A step that cannot become a graph: it reads a tensor on the host, or fails."""


class StepGraphs:
    """Repeats the update of a TrainingStep from one graph for each shape of its inputs.

    The optimizer's learning rates become tensors.

    Args:
        name: the run's name, for the log.
        update: `TrainingStep.update`, called with the inputs, the step and the number of targets.
        optimizer: the optimizer whose step the update makes.
        first_bad_step: the tensor of TrainingStep, which stays in place.
        model: the model that the update trains.
    """

    def __init__(
        self,
        name: str,
        update: Callable[[Batch, Tensor, Tensor], Tensor | None],
        optimizer: Optimizer,
        first_bad_step: Tensor,
        model: nn.Module,
    ) -> None:
        self.name = name
        self.update = update
        self.optimizer = optimizer
        self.first_bad_step = first_bad_step
        self.model = model

        # The tensors that stay in place, besides weights, moments and inputs. The gradients are
        # kept here, so that nobody who drops a parameter's gradient frees what a graph writes.
        device = self.first_bad_step.device
        self._gradients: list[Tensor] = []
        self._lrs = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._num_targets = torch.zeros((), device=device)
        self._outcome = torch.zeros(3, dtype=torch.float64, device=device)

        self._graphs: dict[tuple[torch.Size | None, ...], tuple[Batch, Callable[[], None]]] = {}
        # The graphs share their memory: none runs beside another, or reads what another left.
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None

    def __call__(
        self, inputs: Batch, step: int, num_targets: int, lrs: Sequence[float]
    ) -> Tensor | None:
        """Make one step from the inputs of all micro-batches.

        Args:
            inputs: this rank's rows of the global batch, on the device.
            step: the number of the step.
            num_targets: the number of targets of all ranks.
            lrs: the learning rate of each group of the optimizer.
        Returns:
            A copy of the update's outcome. None: steps of this new shape make no graph; nothing was
            updated, and the log says why.
        Raises:
            RuntimeError: the capture failed, which may leave torch's allocator unusable.
        """
        # fill_ passes a number as a kernel argument, so the host does not wait.
        self._step.fill_(step)
        self._num_targets.fill_(num_targets)
        for tensor, lr in zip(self._lrs, lrs, strict=True):
            tensor.fill_(lr)

        shapes = tuple(None if tensor is None else tensor.shape for tensor in inputs)
        if shapes not in self._graphs:
            try:
                self._graphs[shapes] = self._prepare_graph(inputs)
            except CaptureError as error:
                log(f"{self.name}: steps are launched kernel by kernel, not as a graph: {error}")
                self.optimizer.zero_grad(set_to_none=True)
                return None

        static, launch = self._graphs[shapes]
        for target, source in zip(static, inputs, strict=True):
            if target is not None and source is not None:
                target.copy_(source)
        launch()
        return self._outcome.clone()

    def _prepare_graph(self, inputs: Batch) -> tuple[Batch, Callable[[], None]]:
        """Return static inputs, and a function that makes a step from them."""
        static = Batch(*(None if x is None else x.clone() for x in inputs))
        parameters = list(self.model.parameters())
        if not self._gradients:
            # Allocate the moments before the first activations. A moment in the middle of their
            # memory would keep the allocator from giving it to the graph.
            if not self.optimizer.state:
                make_state(self.optimizer, self.model)
            self._gradients = [torch.zeros_like(parameter) for parameter in parameters]
        for group, lr in zip(self.optimizer.param_groups, self._lrs, strict=True):
            group["lr"] = lr

        def launch() -> None:
            for parameter, gradient in zip(parameters, self._gradients, strict=True):
                parameter.grad = gradient
            torch._foreach_zero_(self._gradients)
            outcome = self.update(static, self._step, self._num_targets)
            assert outcome is not None
            self._outcome.copy_(outcome)

        # Pretend that a step was bad: then the steps before the capture change no weight. The true
        # value is restored below.
        first_bad_step = self.first_bad_step.clone()
        self.first_bad_step.fill_(1)
        try:
            return static, self._capture(launch)
        finally:
            self.first_bad_step.copy_(first_bad_step)

    def _capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats `launch` as a graph."""
        # Warm up on the stream of the captures: autograd accumulates a gradient on the stream on
        # which it first met the parameter.
        if self._side is None:
            self._side = torch.cuda.Stream()
        side = self._side
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                for _ in range(WARMUP_STEPS):
                    launch()
                # A capture that fails may leave torch's allocator unusable, so a wait for the
                # device, which no graph can hold, must fail before it.
                with warnings.catch_warnings():
                    # Torch warns that this mode does not detect every wait.
                    warnings.simplefilter("ignore")
                    torch.cuda.set_sync_debug_mode("error")
                launch()
        except RuntimeError as error:
            raise CaptureError(first_line(error)) from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
            # After an error, too: what was launched must not see another first bad step.
            torch.cuda.current_stream().wait_stream(side)

        graph = torch.cuda.CUDAGraph()
        for group in self.optimizer.param_groups:
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
            for group in self.optimizer.param_groups:
                group["capturable"] = False
        self._pool = graph.pool()
        return graph.replay
