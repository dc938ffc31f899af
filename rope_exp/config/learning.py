"""Configs of optimizers and learning-rate schedules."""

from typing import Annotated, Literal

from pydantic import Field

from rope_exp.config.schema import NonNegative, Positive, Share, section

Momentum = Annotated[float, Field(ge=0, lt=1)]


@section
class AnyOptimConfig:
    """Keys of every optimizer."""

    name: str = ""
    # Learning rate at the peak of the schedule.
    lr: Positive = 3e-3
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    eps: Positive = 1e-8
    # For matrices only.
    weight_decay: NonNegative = 0.1
    # Maximum norm of all gradients together.
    grad_clip: Positive = 1.0


@section
class OptimConfig(AnyOptimConfig):
    """AdamW."""

    name: Literal["adamw"] = "adamw"


@section
class MuonConfig(AnyOptimConfig):
    """Muon for the matrices of the layers, a head at a time in attention; AdamW for the rest.

    A matrix's update has a root mean square of 0.2, about AdamW's, so one learning rate serves
    both. `betas` and `eps` are for AdamW.
    """

    name: Literal["muon"] = "muon"
    momentum: Momentum = 0.95


@section
class CosineConfig:
    """Warm-up, then half a cosine down to `final_fraction` of the peak at the last step.

    `warmup_fraction` is relative to train.num_steps, `final_fraction` to optim.lr.
    """

    name: Literal["cosine"] = "cosine"
    warmup_fraction: Share = 0.05
    final_fraction: Share = 0.1


@section
class WsdConfig:
    """Warm-up, a constant phase, then linear decay over the last `decay_fraction` of the run."""

    name: Literal["wsd"] = "wsd"
    warmup_fraction: Share = 0.05
    final_fraction: Share = 0.0
    decay_fraction: Share = 0.2


ScheduleConfig = CosineConfig | WsdConfig
