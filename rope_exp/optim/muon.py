"""The Muon optimizer: orthogonalised momentum, so that all directions of a matrix move alike.

It is torch.optim.Muon, but attention matrices that hold one matrix per head are updated head by
head, AdamW updates everything but the layers' matrices, and the device skips a bad step.

Shapes: N heads, or 1; O outputs, I inputs.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import AdamW

from rope_exp.attention import HeadLinear
from rope_exp.decoder import Decoder
from rope_exp.identity import section
from rope_exp.sections import Momentum, OptimConfig

# An orthogonal update's root mean square is 1/sqrt(max(O, I)); AdamW's is 0.2 to 0.4 (Liu 2025).
RMS = 0.2


@section
class Config(OptimConfig):
    """Muon for the matrices of the layers, a head at a time in attention; AdamW for the rest.

    A matrix's update has about the root mean square of AdamW's, so one learning rate serves both.
    """

    name: Literal["muon"] = "muon"
    # Decay of the mean of gradients of the layers' matrices.
    momentum: Momentum = 0.95

    # The numbers that it keeps for each element of a matrix, for `plan`; AdamW keeps two.
    moments_of_matrices = 1


class Optimizer(torch.optim.Optimizer):
    """Muon for the layers' matrices and AdamW for the other parameters, in one step.

    `found_inf` is set before a step; 1: the step changes nothing. None: it always updates.

    Args:
        decoder: the model, whose HeadLinear layers say which matrices are updated head by head.
        groups: all parameters, as AdamW takes them; the others keep their groups' settings.
        config: the learning rate, momentum and weight decay.
    """

    found_inf: Tensor | None = None

    def __init__(self, decoder: Decoder, groups: Sequence[dict[str, Any]], config: Config) -> None:
        named = decoder.named_parameters()
        matrices = [p for name, p in named if ".layers." in name and p.ndim == 2]
        keys = ("lr", "momentum", "weight_decay")
        super().__init__(matrices, {key: getattr(config, key) for key in keys})
        # The heads' dimension and their number, for each matrix with one part per head.
        heads = [module for module in decoder.modules() if isinstance(module, HeadLinear)]
        self.splits = {module.get_parameter("weight"): module.split for module in heads}
        orthogonal = set(matrices)
        others = []
        for group in groups:
            rest = [p for p in group["params"] if p not in orthogonal]
            others.append(group | {"params": rest})
        self.adamw = AdamW(others, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)

        # Both share one list of groups, so that the loop sets every learning rate, and one state,
        # which checkpoints save.
        self.adamw.state = self.state
        self.param_groups += self.adamw.param_groups

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter from its gradient, or none if `found_inf`."""
        self.adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adamw.step()

        group = self.param_groups[0]
        for parameter in group["params"]:
            gradient = parameter.grad
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffer = state["momentum_buffer"]
            momentum = buffer.lerp(gradient, 1 - group["momentum"])
            direction = gradient.lerp(momentum, group["momentum"])
            split = self.splits.get(parameter)
            heads_NOI = by_head(direction, split)
            scaled_lr = group["lr"] * RMS * math.sqrt(max(heads_NOI.shape[1:]))
            moved = parameter * (1 - group["lr"] * group["weight_decay"])
            moved -= whole(scaled_lr * orthogonalised(heads_NOI).to(direction.dtype), split)

            # A gradient that is not finite spoils both, so neither is written back.
            if self.found_inf is not None:
                momentum = torch.where(self.found_inf > 0, buffer, momentum)
                moved = torch.where(self.found_inf > 0, parameter, moved)
            buffer.copy_(momentum)
            parameter.copy_(moved)


def orthogonalised(g_NOI: Tensor) -> Tensor:
    """Return g with singular values near 1, by a Newton-Schulz iteration in bfloat16."""
    x = g_NOI.bfloat16()
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    # The quintic that is steepest at 0 among those that bring singular values to about 1
    # (Jordan 2024).
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def by_head(matrix: Tensor, split: tuple[int, int] | None) -> Tensor:
    """Return the matrices of the heads, [N, O, I], by a HeadLinear's `split`; None: N is 1."""
    if split is None:
        return matrix[None]
    dimension, count = split
    return torch.stack(matrix.tensor_split(count, dim=dimension))


def whole(heads_NOI: Tensor, split: tuple[int, int] | None) -> Tensor:
    """Join the matrices of the heads that `by_head` split."""
    return heads_NOI[0] if split is None else torch.cat(list(heads_NOI), dim=split[0])
