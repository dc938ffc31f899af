"""Warm-up, a constant phase, then linear decay over the last `decay_fraction` of the run."""

from typing import Literal

from rope_exp.errors import ConfigError
from rope_exp.identity import section
from rope_exp.sections import ScheduleConfig, Share


@section
class Config(ScheduleConfig):
    """Warm-up, a constant phase, then linear decay over the last `decay_fraction` of the run."""

    name: Literal["wsd"] = "wsd"
    final_fraction: Share = 0.0
    # Share of train.num_steps over which the rate falls at the end.
    decay_fraction: Share = 0.2

    def __post_init__(self) -> None:
        if self.warmup_fraction + self.decay_fraction > 1:
            reason = "warm-up and decay exceed the run"
            raise ConfigError("schedule.warmup_fraction", self.warmup_fraction, reason)


def height(config: Config, step: int, num_warmup_steps: int, num_steps: int) -> float:
    """Return the rate's height above its last value, from 1 to 0, at a step after the warm-up."""
    decay = round(config.decay_fraction * num_steps)
    return min((num_steps - step) / decay, 1.0) if decay else 1.0
