"""Correctness before speed: what is measured computes what it should, on this device, compiled as it trains.

The reference is the model in float64 with torch's own attention and cross-entropy in place of ours.
"""

from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.config.run import RunConfig
from rope_exp.model import attention
from rope_exp.model.decoder import Decoder
from rope_exp.model.laws import certificate
from rope_exp.training.optim import build_optimizer

# Of the relative error of the loss and of all gradients together, against float64.
TOLERANCE = {"bf16": (2e-3, 5e-2), "fp32": (1e-5, 1e-3)}
STEPS_TO_FALL, FALL_NATS = 60, 1.0


def check(configs: dict[str, RunConfig], vocab_size: int, rows: int = 2) -> dict[str, Any]:
    """Assert, for every variant: its rotation's class; loss and gradients against a float64 model on the CPU, compiled
    and eager; and that training on one batch lets the loss fall.

    Returns:
        The relative errors and the fall, by variant.
    """
    return {name: _check(config, vocab_size, rows) for name, config in configs.items()}


def _check(config: RunConfig, vocab_size: int, rows: int) -> dict[str, Any]:
    certificate(config.model, config.pe)
    device = torch.device(config.launch.device)
    ids_BT = torch.randint(
        vocab_size, (rows, config.train.seq_len + 1), generator=torch.Generator().manual_seed(0)
    )
    exact = Decoder(config.architecture(vocab_size))
    exact.initialise(0)
    with mock.patch.object(attention, "MAX_WRITTEN_OUT", 0):
        logits_BTV = exact.double()(ids_BT[:, :-1])
        reference = _with_gradient(
            exact,
            F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="sum"),
        )
    errors: dict[str, Any] = {}
    loss_limit, gradient_limit = TOLERANCE[config.train.precision]
    for how in ("eager", "compiled"):
        model = Decoder(config.architecture(vocab_size))
        model.initialise(0)
        model.to(device)
        if how == "compiled":
            model.compile_parts()
        found = _loss_and_gradient(model, ids_BT.to(device), config.train.precision)
        loss_error, gradient_error = (
            _relative(own, right) for own, right in zip(found, reference, strict=True)
        )
        assert loss_error < loss_limit, (
            f"{config.pe.name} {how}: the loss is off by {loss_error:.1e}"
        )
        assert gradient_error < gradient_limit, (
            f"{config.pe.name} {how}: the gradient is off by {gradient_error:.1e}"
        )
        errors[how] = {"loss": loss_error, "gradient": gradient_error}
    errors["fall_nats"] = _fall(model, config, ids_BT.to(device))
    assert errors["fall_nats"] > FALL_NATS, (
        f"{config.pe.name}: the loss falls by {errors['fall_nats']} nats"
    )
    torch.compiler.reset()
    return errors


def _loss_and_gradient(model: Decoder, ids_BT: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=precision == "bf16"):
        nats = model(ids_BT[:, :-1], ids_BT[:, 1:])
    return _with_gradient(model, nats)


def _with_gradient(model: Decoder, nats: Tensor) -> tuple[Tensor, Tensor]:
    nats.backward()  # type: ignore[no-untyped-call]
    gradients = [
        parameter.grad.double().cpu().flatten()
        for parameter in model.parameters()
        if parameter.grad is not None
    ]
    model.zero_grad(set_to_none=True)
    return nats.detach().double().cpu(), torch.cat(gradients)


def _relative(own: Tensor, right: Tensor) -> float:
    return float((own - right).norm() / right.norm())


def _fall(model: Decoder, config: RunConfig, ids_BT: Tensor) -> float:
    """By how many nats a token the loss of one batch falls when trained on it."""
    optimizer = build_optimizer(model.parameters(), config.optim)
    losses = []
    for _ in range(STEPS_TO_FALL):
        with torch.autocast(
            ids_BT.device.type, torch.bfloat16, enabled=config.train.precision == "bf16"
        ):
            loss = model(ids_BT[:, :-1], ids_BT[:, 1:]) / ids_BT[:, 1:].numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return float(losses[0] - losses[-1])
