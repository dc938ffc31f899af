"""Resuming: where a run begins, what a checkpoint keeps of that, and that all ranks agree on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rope_exp.config.schema import NonNegative, OrderSha256, Sha256
from rope_exp.model.decoder import weights
from rope_exp.run import checkpoint
from rope_exp.run.folder import MARK_FIELDS, check_fields
from rope_exp.system.errors import CheckpointError
from rope_exp.training.optim import (
    expected_optimizer_tensors,
    load_optimizer_tensors,
    optimizer_tensors,
)
from rope_exp.training.parallel import Parallel
from rope_exp.training.step import Outcome

# state.json, beside the step.
STATE_FIELDS: dict[str, Any] = {
    "config_sha256": Sha256,
    "data_sha256": Sha256,
    "init_sha256": Sha256,
    "order_sha256": OrderSha256,
    "elapsed_s": NonNegative,
    "rng": dict,
    "metrics": dict,
    "unrecorded": dict | None,
}
OUTCOME_FIELDS: dict[str, Any] = {"loss": float, "grad_norm": float}


@dataclass(frozen=True)
class Start:
    """Where a run begins or goes on; the defaults are the beginning of a new run.

    Attributes:
        step: the last that was made.
        order_sha256: of all batches up to there.
        elapsed_s: the time that the run has taken so far.
        metrics: what MetricsWriter.mark gave.
        unrecorded: the outcome of this step, where its row waits for an evaluation that was
            broken off.
        passed_over: later checkpoints, which did not verify.
    """

    step: int = 0
    order_sha256: str = ""
    elapsed_s: float = 0.0
    metrics: Mapping[str, Any] | None = None
    unrecorded: Outcome | None = None
    passed_over: tuple[int, ...] = ()


def save(
    folder: Path,
    start: Start,
    identity: Mapping[str, str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> None:
    """Save under `folder` (the run's `checkpoints/`) all that `load` takes to go on from `start`.

    Raises:
        DiskError: the disk is full. OSError: it is broken.
    """
    unrecorded = None
    if start.unrecorded is not None:
        unrecorded = {key: getattr(start.unrecorded, key) for key in OUTCOME_FIELDS}
    state = {
        **identity,
        "order_sha256": start.order_sha256,
        "elapsed_s": start.elapsed_s,
        "rng": _rng_state(device),
        "metrics": start.metrics,
        "unrecorded": unrecorded,
    }
    moments = optimizer_tensors(optimizer, dict(model.named_parameters()))
    checkpoint.save(folder, start.step, weights(model), moments, state)


def load(
    folder: Path,
    identity: Mapping[str, str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> Start:
    """Load the newest checkpoint under `folder` into the model, its optimizer and torch's generators.

    Args:
        identity: the hashes of config, data and initial weights that a checkpoint must agree with.
    Returns:
        Where the run goes on, or where a new run begins if there is no checkpoint.
    Raises:
        CheckpointError, RecordError: what is there is no beginning of this run; nothing was
            changed.
    """
    saved = checkpoint.load_newest(folder)
    if saved is None:
        return Start()

    # Everything is checked before anything is loaded.
    where = f"the checkpoint of step {saved.step} in {folder.parent}"
    state = saved.state
    parameters = dict(model.named_parameters())
    _check_state(checkpoint.state_file(folder, saved.step), state)
    _check_identity(where, state, identity)
    checkpoint.check_tensors(where, saved.model, weights(model))
    checkpoint.check_tensors(where, saved.optimizer, expected_optimizer_tensors(parameters))

    _set_rng_state(state["rng"], device, where)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved.model[name])
    load_optimizer_tensors(optimizer, parameters, saved.optimizer)

    unrecorded = state["unrecorded"]
    if unrecorded is not None:
        order = state["order_sha256"]
        unrecorded = Outcome(saved.step, unrecorded["loss"], unrecorded["grad_norm"], 0, order)
    return Start(
        saved.step,
        state["order_sha256"],
        state["elapsed_s"],
        state["metrics"],
        unrecorded,
        tuple(step for step in checkpoint.list_steps(folder) if step > saved.step),
    )


def agree(start: Start, identity: Mapping[str, str], parallel: Parallel, folder: Path) -> None:
    """Refuse ranks that begin at different steps or on different data.

    So they would on hosts that have disks of their own.

    Raises:
        CheckpointError: on every rank.
    """
    mine = {"step": start.step, "order_sha256": start.order_sha256, **identity}
    first, *others = parallel.gather(mine)
    for rank, theirs in enumerate(others, start=1):
        for key, value in first.items():
            if theirs[key] != value:
                raise CheckpointError(
                    f"process {rank} begins at {key}={theirs[key]!s:.12} and process 0 at "
                    f"{value!s:.12}; all of them must see the same {folder} and the same data"
                )


def _check_state(path: Path, state: Mapping[str, Any]) -> None:
    check_fields(path, state, STATE_FIELDS)
    check_fields(path, state["metrics"], MARK_FIELDS)
    if state["unrecorded"] is not None:
        check_fields(path, state["unrecorded"], OUTCOME_FIELDS)


def _check_identity(where: str, state: Mapping[str, Any], identity: Mapping[str, str]) -> None:
    for key, value in identity.items():
        if state[key] != value:
            raise CheckpointError(
                f"{where} is of another run: its {key} is {state[key]!s:.12} and this run's "
                f"{value:.12}; restore what it was trained on, or use run.fresh=true"
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
        tensors = {
            name: torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
            for name, state in states.items()
        }
        torch.set_rng_state(tensors["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(tensors["cuda"], device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{where} holds no state of torch's random numbers for {device.type}; restore it, or "
            "use run.fresh=true"
        ) from error
