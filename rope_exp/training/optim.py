"""The optimizer of a run, and its state as tensors by name."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.config.learning import MuonConfig, OptimConfig
from rope_exp.model.decoder import Decoder
from rope_exp.training.muon import Muon


def build_optimizer(decoder: Decoder, config: OptimConfig | MuonConfig) -> Optimizer:
    """Return fused AdamW, or Muon with AdamW for embeddings, head, norms and other vectors.

    Matrices decay, and vectors (norms, frequencies, decays) do not.
    """
    named = dict(decoder.named_parameters())
    of_layers = [name for name in named if ".layers." in name and named[name].ndim == 2]
    of_muon = of_layers if isinstance(config, MuonConfig) else []

    others = [parameter for name, parameter in named.items() if name not in of_muon]
    decaying = [each for each in others if each.ndim >= 2]
    groups: list[dict[str, Any]] = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": [each for each in others if each.ndim < 2], "weight_decay": 0.0},
    ]
    if isinstance(config, OptimConfig):
        return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)

    architecture = decoder.architecture
    of_heads = architecture.attn.head_splits(architecture.model)
    splits = {
        named[name]: of_heads[within]
        for name in of_muon
        if (within := name.partition(".self_attn.")[2]) in of_heads
    }
    return Muon(
        [named[name] for name in of_muon],
        splits,
        groups,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        betas=config.betas,
        eps=config.eps,
    )


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
    optimizer.found_inf = None
