"""The optimizer of a run: its groups of parameters and its state."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.decoder import FREQUENCIES, POSITIONS, Decoder
from rope_exp.identity import import_choice
from rope_exp.rotary import count_crossings
from rope_exp.sections import OptimConfig


class OptimizerLeaf(Protocol):
    """A file of optim/: the keys of an optimizer, and its class."""

    @property
    def Config(self) -> type[OptimConfig]: ...
    @property
    def Optimizer(self) -> Callable[[Decoder, Sequence[dict[str, Any]], Any], Optimizer]: ...


def optimizer_leaf(name: str) -> OptimizerLeaf:
    """Return the file of optim/ that optim.name names."""
    return cast("OptimizerLeaf", import_choice("optim", name, "optim.name"))


def build_optimizer(decoder: Decoder, config: OptimConfig) -> Optimizer:
    """Return fused AdamW, or the optimizer of optim/ that the config names.

    Vectors, and all parameters of our own position encodings, get no weight decay. Learned
    frequencies are a group whose learning rate is a multiple ("lr_multiple") of the others', and
    their changes of sign are counted.
    """
    decaying: dict[str, Any] = {"params": [], "weight_decay": config.weight_decay}
    staying: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    frequencies: dict[str, Any] = {"params": [], "weight_decay": 0.0}
    # A key of ours: torch keeps it in the group, and the training step reads it.
    frequencies["lr_multiple"] = decoder.architecture.pe.trainable_lr
    for name, parameter in decoder.named_parameters():
        group = decaying
        if name.startswith(FREQUENCIES):
            group = frequencies
        elif parameter.ndim < 2 or name.startswith(POSITIONS):
            group = staying
        group["params"].append(parameter)
    learned = [frequencies] if frequencies["params"] else []
    groups = [decaying, staying, *learned]

    optimizer: Optimizer
    if config.name == "adamw":
        optimizer = AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    else:
        optimizer = optimizer_leaf(config.name).Optimizer(decoder, groups, config)
    if learned:
        count_crossings(decoder.model.rotary_emb, optimizer)
    return optimizer


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<moment>`; {} before the first step."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimizer.state[parameter].items():
            tensors[f"{name}.{moment}"] = tensor
    return tensors


def make_state(optimizer: Any, model: nn.Module) -> None:
    """Create an optimizer's state, so that it can be loaded, by a step that updates nothing."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.found_inf = torch.ones((), device=parameters[0].device)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    optimizer.found_inf = None
