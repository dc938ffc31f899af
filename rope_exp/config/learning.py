"""Configs of optimizers and learning-rate schedules."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from rope_exp.config.schema import SECTION, NonNegative, Positive, Share, numeric

Momentum = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=SECTION)
class AnyOptimConfig:
    """Keys of every optimizer."""

    name: str = numeric("")
    # Learning rate at the peak of the schedule.
    lr: Positive = numeric(3e-3)
    betas: tuple[Momentum, Momentum] = numeric((0.9, 0.95))
    eps: Positive = numeric(1e-8)
    # For matrices only.
    weight_decay: NonNegative = numeric(0.1)
    # Maximum norm of all gradients together.
    grad_clip: Positive = numeric(1.0)


@dataclass(frozen=True, config=SECTION)
class OptimConfig(AnyOptimConfig):
    """AdamW."""

    name: Literal["adamw"] = numeric("adamw")


@dataclass(frozen=True, config=SECTION)
class MuonConfig(AnyOptimConfig):
    """Muon for the matrices of the layers, a head at a time in attention; AdamW for the rest.

    A matrix's update has a root mean square of 0.2, about AdamW's, so one learning rate serves
    both. `betas` and `eps` are for AdamW.
    """

    name: Literal["muon"] = numeric("muon")
    momentum: Momentum = numeric(0.95)


@dataclass(frozen=True, config=SECTION)
class CosineConfig:
    """Warm-up, then half a cosine down to `final_fraction` of the peak at the last step.

    `warmup_fraction` is relative to train.num_steps, `final_fraction` to optim.lr.
    """

    name: Literal["cosine"] = numeric("cosine")
    warmup_fraction: Share = numeric(0.05)
    final_fraction: Share = numeric(0.1)


@dataclass(frozen=True, config=SECTION)
class WsdConfig:
    """Warm-up, a constant phase, then linear decay over the last `decay_fraction` of the run."""

    name: Literal["wsd"] = numeric("wsd")
    warmup_fraction: Share = numeric(0.05)
    final_fraction: Share = numeric(0.0)
    decay_fraction: Share = numeric(0.2)


ScheduleConfig = CosineConfig | WsdConfig
