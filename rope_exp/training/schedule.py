"""The learning rate as a pure function of the step."""

import math

from rope_exp.config.run import RunConfig


def learning_rate(step: int, config: RunConfig) -> float:
    """Return the learning rate of `step`.

    It rises linearly over the warm-up to its peak, optim.lr. Then
    cosine: it falls along half a cosine to final_fraction * peak, reached at the last step;
    wsd: it stays constant, then falls linearly to final_fraction * peak over the last
    decay_fraction of the run, if that is at least a step.

    Args:
        step: counted from 1 to train.num_steps.
    """
    num_steps = config.train.num_steps
    peak = config.optim.lr
    schedule = config.schedule
    warmup = config.num_warmup_steps
    if step <= warmup:
        return peak * step / warmup

    match schedule.name:
        case "cosine":
            done = (step - warmup) / (num_steps - warmup)
            height = 0.5 * (1 + math.cos(math.pi * done))
        case "wsd":
            decay = round(schedule.decay_fraction * num_steps)
            height = min((num_steps - step) / decay, 1.0) if decay else 1.0

    floor = schedule.final_fraction
    return peak * (floor + (1 - floor) * height)
