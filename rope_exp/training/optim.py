"""AdamW over two parameter groups, and its state as tensors by name."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.config.sections import OptimConfig

Parameters = Mapping[str, nn.Parameter]


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> AdamW:
    """Return fused AdamW, under which matrices decay, and vectors (norms, frequencies) do not."""
    every = list(parameters)
    groups = [
        {"params": [each for each in every if each.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def optimizer_tensors(optimizer: Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<moment>`; {} before the first update."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        for moment, tensor in optimizer.state[parameter].items():
            tensors[f"{name}.{moment}"] = tensor
    return tensors


def load_optimizer_tensors(
    optimizer: Optimizer, parameters: Parameters, tensors: Mapping[str, Tensor]
) -> None:
    """Undo `optimizer_tensors`: every tensor must find its parameter."""
    for name, tensor in tensors.items():
        parameter_name, _, moment = name.rpartition(".")
        parameter = parameters[parameter_name]
        optimizer.state[parameter][moment] = tensor.to(parameter.device)


def expected_optimizer_tensors(parameters: Parameters) -> dict[str, Tensor]:
    """Return what `optimizer_tensors` gives after an update: names, shapes and types, no values."""
    expected: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        expected[f"{name}.step"] = torch.zeros(())
        expected[f"{name}.exp_avg"] = parameter
        expected[f"{name}.exp_avg_sq"] = parameter
    return expected
