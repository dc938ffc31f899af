"""Resuming: where a run begins, what a checkpoint keeps of that, and that all ranks agree on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import nn

from rope_exp.config.schema import NonNegative, OrderSha256, Sha256
from rope_exp.model.decoder import weights
from rope_exp.run import checkpoint
from rope_exp.run.folder import checked
from rope_exp.run.metrics import Mark
from rope_exp.system.errors import CheckpointError
from rope_exp.training.optim import (
    expected_optimizer_tensors,
    load_optimizer_tensors,
    optimizer_tensors,
)


class State(TypedDict):
    """state.json, beside the step."""

    config_sha256: Sha256
    data_sha256: Sha256
    init_sha256: Sha256
    order_sha256: OrderSha256
    elapsed_s: NonNegative
    rng: dict
    metrics: Mark
    unrecorded: tuple[float, float] | None  # loss, grad_norm


@dataclass(frozen=True)
class Start:
    """Where a run begins or goes on; the defaults are the beginning of a new run.

    Attributes:
        step: the last that was made.
        order_sha256: of all batches up to there.
        elapsed_s: the time that the run has taken so far.
        metrics: the mark of metrics.jsonl.
        unrecorded: the loss and the gradient's norm of this step, where its row waits for an
            evaluation that was broken off.
        passed_over: later checkpoints, which did not verify.
    """

    step: int = 0
    order_sha256: str = ""
    elapsed_s: float = 0.0
    metrics: Mark | None = None
    unrecorded: tuple[float, float] | None = None
    passed_over: tuple[int, ...] = ()


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    Attributes:
        folder: the run's `checkpoints/`.
        identity: the hashes of config, data and initial weights that tell this run from others.
        model: the unwrapped model.
        device: where it is trained.
    """

    folder: Path
    identity: Mapping[str, str]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device

    def load(self) -> Start:
        """Load the newest checkpoint into the model, the optimizer and torch's generators.

        Returns:
            Where the run goes on, or where a new run begins if there is no checkpoint.
        Raises:
            CheckpointError, RecordError: what is there is no beginning of this run; nothing was
                changed.
        """
        saved = checkpoint.load_newest(self.folder)
        if saved is None:
            return Start()

        # Everything is checked before anything is loaded.
        where = f"the checkpoint of step {saved.step} in {self.folder.parent}"
        parameters = dict(self.model.named_parameters())
        state = checked(checkpoint.state_file(self.folder, saved.step), saved.state, State)
        for key, value in self.identity.items():
            if state[key] != value:
                raise CheckpointError(
                    f"{where} is of another run: its {key} is {state[key]:.12} and this run's "
                    f"{value:.12}; restore what it was trained on, or use run.fresh=true"
                )
        checkpoint.check_tensors(where, saved.model, weights(self.model))
        checkpoint.check_tensors(where, saved.optimizer, expected_optimizer_tensors(parameters))

        _set_rng_state(state["rng"], self.device, where)
        self.model.load_state_dict(saved.model)
        load_optimizer_tensors(self.optimizer, parameters, saved.optimizer)

        later = (step for step in checkpoint.list_steps(self.folder) if step > saved.step)
        return Start(
            saved.step,
            state["order_sha256"],
            state["elapsed_s"],
            state["metrics"],
            state["unrecorded"],
            tuple(later),
        )

    def save(self, start: Start, *, keep: int) -> None:
        """Save all that `load` takes to go on from `start`, and keep the newest `keep` checkpoints.

        Raises:
            DiskError: the disk is full. OSError: it is broken.
        """
        state = {
            **self.identity,
            "order_sha256": start.order_sha256,
            "elapsed_s": start.elapsed_s,
            "rng": _rng_state(self.device),
            "metrics": start.metrics,
            "unrecorded": start.unrecorded,
        }
        moments = optimizer_tensors(self.optimizer, dict(self.model.named_parameters()))
        checkpoint.save(self.folder, start.step, weights(self.model), moments, state)
        checkpoint.prune(self.folder, keep, start.step, start.passed_over)


def agree(beginnings: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Refuse ranks that begin differently, as hosts that have disks of their own would.

    Args:
        beginnings: the step and the hashes that each rank begins at, by rank.
    Raises:
        CheckpointError: naming the first rank that differs from rank 0.
    """
    for rank, theirs in enumerate(beginnings):
        for key, value in beginnings[0].items():
            if theirs[key] != value:
                raise CheckpointError(
                    f"process {rank} begins at {key}={theirs[key]!s:.12} and process 0 at "
                    f"{value!s:.12}; all of them must see the same {folder} and the same data"
                )


def _rng_state(device: torch.device) -> dict[str, str]:
    """Return the states of torch's random generators, as hex.

    Training draws no random number today. They are saved so that resuming stays exact when
    someone adds dropout.
    """
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: state.numpy().tobytes().hex() for name, state in states.items()}


def _set_rng_state(states: Mapping[str, str], device: torch.device, where: str) -> None:
    try:
        torch.set_rng_state(torch.tensor([*bytes.fromhex(states["cpu"])], dtype=torch.uint8))
        if device.type == "cuda":
            state = torch.tensor([*bytes.fromhex(states["cuda"])], dtype=torch.uint8)
            torch.cuda.set_rng_state(state, device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{where} holds no state of torch's random numbers for {device.type}; restore it, or "
            "use run.fresh=true"
        ) from error
