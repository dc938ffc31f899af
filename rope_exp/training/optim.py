"""AdamW over two parameter groups, and its state as tensors by name."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from rope_exp.config.run import OptimConfig

Parameters = Mapping[str, nn.Parameter]


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> torch.optim.AdamW:
    """Return fused AdamW: matrices decay, one-dimensional parameters (norms, frequencies) do not."""
    matrices = []
    vectors = []
    for parameter in parameters:
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)

    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Parameters
) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<moment>`; {} before the first update."""
    return {
        f"{name}.{moment}": tensor
        for name, parameter in parameters.items()
        for moment, tensor in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Parameters, tensors: Mapping[str, Tensor]
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
