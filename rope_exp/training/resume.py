"""Resuming: the state from which a run begins, its checkpoints, and the agreement of all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

import torch
from torch import nn
from typing_extensions import TypedDict

from rope_exp.config.run import differing_keys
from rope_exp.config.schema import Natural, NonNegative, OrderSha256, Sha256
from rope_exp.model.decoder import weights
from rope_exp.run import checkpoint
from rope_exp.run.folder import checked
from rope_exp.system.errors import CheckpointError
from rope_exp.training.optim import make_state, optimizer_tensors


class Start(TypedDict):
    """The state from which a run begins or resumes.

    Attributes:
        step: the last completed step.
        order_sha256: hash of all batches up to it.
        elapsed_s: the run's training time so far.
        unrecorded: the loss and the gradient norm of this step, if its row waits for an
            evaluation that was interrupted.
    """

    step: Natural
    order_sha256: OrderSha256
    elapsed_s: NonNegative
    unrecorded: tuple[float, float] | None


class State(Start):
    """Contents of state.json: the start, and the hashes that identify the run."""

    config_sha256: Sha256
    data_sha256: Sha256
    init_sha256: Sha256
    # Absent in checkpoints of older versions.
    shared_init_sha256: NotRequired[Sha256]


INITIAL = ("init_sha256", "shared_init_sha256")
BEGINNING = Start(step=0, order_sha256="", elapsed_s=0.0, unrecorded=None)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    Attributes:
        folder: the run's `checkpoints/`.
        identity: the hashes of config, data and initial weights that identify this run. If only
            the checkpoints know the initial weights, `load` adds their hashes.
        model: the unwrapped model.
    """

    folder: Path
    identity: dict[str, str]
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def load(self) -> Start:
        """Load the newest checkpoint into the model and the optimizer.

        Returns:
            The state from which the run resumes, or the start of a new run if there is no
            checkpoint.
        Raises:
            CheckpointError, RecordError: no checkpoint verifies, or it does not belong to this
                run; the weights were not changed.
        """
        saved = checkpoint.load_newest(self.folder)
        if saved is None:
            return BEGINNING

        where = f"the checkpoint of step {saved.step} in {self.folder.parent}"
        state: Any = checked(f"{where}: state.json", saved.state, State)
        for key, value in self.identity.items():
            if state.get(key, value) != value:
                raise CheckpointError(
                    f"{where} is of another run: its {key} is {state[key]:.12} and this run's "
                    f"{value:.12}; restore what it was trained on, or use run.fresh=true"
                )
        make_state(self.optimizer, self.model)
        moments = optimizer_tensors(self.optimizer, self.model)
        differing = sorted(moments.keys() ^ saved.optimizer.keys())
        if differing:
            raise CheckpointError(f"{where} is of another optimizer: {', '.join(differing)}")

        checkpoint.load_weights(where, self.model, saved.model)
        for name, moment in moments.items():
            moment.copy_(saved.optimizer[name])
        self.identity.update((key, state[key]) for key in INITIAL if key in state)
        return state

    def save(self, start: Start, keep: int) -> None:
        """Save a checkpoint at `start` for `load`, and keep only the newest `keep` checkpoints.

        Raises:
            DiskError: the disk is full. OSError: it is broken.
        """
        step = start["step"]
        moments = optimizer_tensors(self.optimizer, self.model)
        state = {**start, **self.identity}
        checkpoint.save(self.folder, step, weights(self.model), moments, state)
        checkpoint.prune(self.folder, keep, newest=step)


def agree(beginnings: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Refuse ranks that begin differently, as happens when hosts do not share a disk.

    Args:
        beginnings: the step and the hashes at which each rank begins, by rank.
    Raises:
        CheckpointError: a rank differs from rank 0; the first is named.
    """
    for rank, theirs in enumerate(beginnings):
        keys = differing_keys(beginnings[0], theirs)
        if keys:
            raise CheckpointError(
                f"process {rank} begins elsewhere than process 0 ({'; '.join(keys)}); all of them "
                f"must see the same {folder} and the same data"
            )
