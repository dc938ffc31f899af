"""Construction of a run's optimizer, and its state as named tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from rope_exp.config.learning import MuonConfig, OptimConfig
from rope_exp.model.attention.base import HeadLinear
from rope_exp.model.decoder import FREQUENCIES, POSITIONS, Decoder
from rope_exp.training.muon import Muon

# Stored beside a parameter's moments: how often each of its elements has crossed 0.
CROSSINGS = "crossings"


def build_optimizer(decoder: Decoder, config: OptimConfig | MuonConfig) -> Optimizer:
    """Return fused AdamW, or Muon with AdamW for embeddings, head, norms and other vectors.

    Weight decay applies to matrices, but not to vectors (norms, decays) or position parameters.
    Frequencies have their own learning rate, a multiple of the others'. If they are learned
    directly and not as logarithms, the optimizer counts how often each crosses 0.
    """
    optimizer = _make_optimizer(decoder, config)
    rotary = decoder.model.rotary_emb
    if rotary.learned and not rotary.in_log:
        _count_crossings(optimizer, list(rotary.parameters()))
    return optimizer


def _make_optimizer(decoder: Decoder, config: OptimConfig | MuonConfig) -> Optimizer:
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

    splits = {
        module.get_parameter("weight"): module.split
        for module in decoder.modules()
        if isinstance(module, HeadLinear)
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


def _count_crossings(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Make an optimizer count the sign changes of each element; 0 counts as positive.

    The counts are on the device and in the optimizer's state, so that a checkpoint holds them with
    the moments.
    """
    were_below: list[Tensor] = []

    def look(*_: object) -> None:
        were_below[:] = [parameter < 0 for parameter in parameters]

    def count(*_: object) -> None:
        for parameter, was_below in zip(parameters, were_below, strict=True):
            state = optimizer.state[parameter]
            if CROSSINGS not in state:
                state[CROSSINGS] = torch.zeros_like(parameter, dtype=torch.int64)
            state[CROSSINGS] += was_below != (parameter < 0)

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(count)


def crossings(optimizer: Optimizer, decoder: Decoder) -> dict[str, Tensor]:
    """Return how often each learned frequency has crossed 0, for each pair that is counted."""
    rotary = decoder.model.rotary_emb
    states = {
        pair: optimizer.state[rotary.get_parameter(name)] for pair, name in rotary.learned.items()
    }
    return {pair: state[CROSSINGS] for pair, state in states.items() if CROSSINGS in state}


def optimizer_tensors(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as `<parameter>.<moment>`; {} before the first step."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        for moment, tensor in optimizer.state[parameter].items():
            tensors[f"{name}.{moment}"] = tensor
    return tensors


def make_state(optimizer: Any, model: nn.Module) -> None:
    """Create an optimizer's state, so that it can be loaded, by a step that updates nothing."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.found_inf = torch.ones((), device=parameter.device)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    optimizer.found_inf = None
