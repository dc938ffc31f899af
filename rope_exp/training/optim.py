"""The optimizer of a run, and its state as tensors by name."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.config.learning import MuonConfig, OptimConfig
from rope_exp.model.decoder import FREQUENCIES, Decoder
from rope_exp.training.muon import Muon

# The beginnings of the names of what is learned of positions.
POSITIONS = (FREQUENCIES, "model.added_positions.", "model.score_bias.")


def build_optimizer(decoder: Decoder, config: OptimConfig | MuonConfig) -> Optimizer:
    """Return fused AdamW, or Muon with AdamW for embeddings, head, norms and other vectors.

    Matrices decay; vectors (norms, decays) and what is learned of positions do not. Frequencies
    have a rate of their own: a multiple of the others'.
    """
    named = dict(decoder.named_parameters())
    of_positions = [name for name in named if name.startswith(POSITIONS)]
    frequencies = [name for name in of_positions if name.startswith(FREQUENCIES)]
    of_layers = [name for name in named if ".layers." in name and named[name].ndim == 2]
    of_muon = of_layers if isinstance(config, MuonConfig) else []

    others = [name for name in named if name not in {*of_muon, *frequencies}]
    decaying = [name for name in others if named[name].ndim >= 2 and name not in of_positions]
    staying = [name for name in others if name not in decaying]
    groups: list[dict[str, Any]] = [
        {"params": [named[name] for name in decaying], "weight_decay": config.weight_decay},
        {"params": [named[name] for name in staying], "weight_decay": 0.0},
    ]
    if frequencies:
        rate = decoder.architecture.pe.trainable_lr
        of_frequencies = [named[name] for name in frequencies]
        groups.append({"params": of_frequencies, "weight_decay": 0.0, "rate": rate})
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
