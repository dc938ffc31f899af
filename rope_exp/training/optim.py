"""AdamW over two parameter groups, and its state as tensors by name."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.config.sections import OptimConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> AdamW:
    """Return fused AdamW, under which matrices decay, and vectors (norms, frequencies) do not."""
    every = list(parameters)
    groups = [
        {"params": [each for each in every if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<moment>`; {} before the first update."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimizer.state[parameter].items():
            tensors[f"{name}.{moment}"] = tensor
    return tensors


def make_state(optimizer: Any, model: nn.Module) -> None:
    """Have an optimizer make its state, to be loaded, by an update that it skips itself."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.found_inf = torch.ones((), device=parameter.device)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    del optimizer.found_inf
