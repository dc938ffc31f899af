"""Check of correctness before speed: every variant on this device, eager and compiled."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import ours
from benchmarks.device import random_ids
from benchmarks.setting import Bench

ROWS = 2
# Limits of the relative error of the loss, and of all gradients together.
TOLERANCE = {"bf16": {"loss": 2e-3, "gradient": 5e-2}, "fp32": {"loss": 1e-5, "gradient": 1e-3}}
STEPS_TO_FALL = 60
FALL_NATS = 1.0


def check(bench: Bench, model: str) -> dict[str, Any]:
    """Compare every variant with float64 on the CPU, eager and compiled; let its loss fall.

    Returns:
        By variant the relative errors of loss and gradient, eager and compiled; and fall_nats, the
        fall of one batch's loss in nats per token when trained on it.
    Raises:
        RuntimeError: An error is too large, or a loss falls too little.
    """
    found: dict[str, Any] = {pe: {} for pe in ours.VARIANTS}
    for pe, errors in found.items():
        spec = ours.spec_of(bench.words(model, f"pe={pe}"))
        config = ours.settled(spec["words"])
        ids_BT = random_ids(spec, ROWS)
        exact_model = ours.decoder(config, spec["vocab_size"])
        logits_BTV = ours.exact_logits(exact_model, ids_BT[:, :-1])
        loss = cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
        exact = _with_gradient(exact_model, loss)

        ids_BT = ids_BT.to(bench.device)
        for how in ("eager", "compiled"):
            config = config.replace("train", compile=how == "compiled")
            learner = ours.Learner(config, spec["vocab_size"])
            own = _with_gradient(learner.model, learner.loss(ids_BT, ids_BT[:, 1:].numel()))
            errors[how] = {key: _relative(own[key], exact[key]) for key in exact}
            for key, most in TOLERANCE[config.train.precision].items():
                if not errors[how][key] < most:
                    error = f"the relative error of the {key} is {errors[how][key]:.1e}"
                    raise RuntimeError(f"{pe}, {how}: {error}, and may be {most:.0e}")

        losses = [learner.step([ids_BT]) for _ in range(STEPS_TO_FALL)]
        errors["fall_nats"] = float(losses[0] - losses[-1])
        if not errors["fall_nats"] > FALL_NATS:
            raise RuntimeError(f"{pe}: the loss falls by {errors['fall_nats']} nats alone")
        torch.compiler.reset()
    return found


def _with_gradient(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Return the loss, and all gradients as one vector, in float64."""
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    values = {"loss": loss.detach(), "gradient": torch.cat(gradients)}
    return {key: value.double().cpu() for key, value in values.items()}


def _relative(own: Tensor, right: Tensor) -> float:
    return float((own - right).norm() / right.norm())
