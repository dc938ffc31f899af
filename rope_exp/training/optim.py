"""AdamW over two parameter groups, and the learning rate as a pure function of the step."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from rope_exp.config.sections import CosineConfig, OptimConfig, ScheduleConfig


def learning_rate(step: int, num_steps: int, optim: OptimConfig, schedule: ScheduleConfig) -> float:
    """The rate of update `step`, counted from 1 to `num_steps`.

    Rises linearly over the warm-up, then
    cosine: falls to final_fraction * lr along half a cosine, reached at the last step;
    wsd: stays at lr, then falls linearly to final_fraction * lr over the last decay_fraction of the run.
    """
    warmup = round(schedule.warmup_fraction * num_steps)
    if step <= warmup:
        return optim.lr * step / warmup
    floor = schedule.final_fraction
    if isinstance(schedule, CosineConfig):
        done = (step - warmup) / max(num_steps - warmup, 1)
        return optim.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
    decay = max(round(schedule.decay_fraction * num_steps), 1)
    left = min((num_steps - step) / decay, 1.0)
    return optim.lr * (floor + (1 - floor) * left)


def build_optimizer(
    parameters: Iterable[tuple[str, nn.Parameter]], config: OptimConfig
) -> torch.optim.AdamW:
    """Fused AdamW; matrices decay, one-dimensional parameters (norms, frequencies) do not."""
    named = list(parameters)
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: dict[nn.Parameter, str]
) -> dict[str, Tensor]:
    """The optimizer's state as `<parameter>.<moment>`; {} before the first update."""
    return {
        f"{name}.{key}": value
        for p, name in names.items()
        for key, value in optimizer.state.get(p, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: dict[nn.Parameter, str], tensors: dict[str, Tensor]
) -> None:
    """The inverse of `optimizer_tensors`; every tensor must find its parameter."""
    by_name = {name: parameter for parameter, name in names.items()}
    for name, tensor in tensors.items():
        parameter_name, _, key = name.rpartition(".")
        parameter = by_name[parameter_name]
        optimizer.state[parameter][key] = tensor.to(parameter.device)


def expected_optimizer_tensors(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """What `optimizer_tensors` gives after an update, in names, shapes and types; the values mean nothing."""
    step = torch.zeros(())
    return {
        f"{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in (("step", step), ("exp_avg", parameter), ("exp_avg_sq", parameter))
    }
