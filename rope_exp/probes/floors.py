"""The share of attention's denominators that eps replaces, because the sum is smaller."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from rope_exp.config import RunConfig
from rope_exp.errors import show
from rope_exp.probes._windows import Finished, attentions, loss, rounded
from rope_exp.report import Report

# Below other notes of probes.
ORDER = 6


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    attn = config.attn
    reason = f"attn.kind={attn.kind} cannot be asked for floors"
    return "" if getattr(attn, "has_floors", False) else reason


def ask(model: Finished) -> dict[str, Any]:
    """Return the share of the denominators that eps floors, by layer, over positions and heads."""
    layers: list[Any] = [*attentions(model.decoder)]
    is_floored: list[list[Tensor]] = [[] for _ in layers]
    with ExitStack() as stack:
        for layer, seen in zip(layers, is_floored, strict=True):
            below = partial(_below, seen, layer.attn.eps, layer.below)
            stack.enter_context(patch.object(layer, "below", below))
        loss(model)
    return {"share": rounded(torch.cat(seen).double().mean() for seen in is_floored)}


def _below(seen: list[Tensor], eps: float, below: Callable[[Any], Tensor], sums: Any) -> Tensor:
    norm_BTH1 = below(sums)
    seen.append((norm_BTH1 < eps).flatten())
    return norm_BTH1


def notes(report: Report) -> list[str]:
    """Return a note for each run in which eps floors a denominator."""
    sentences = []
    for row in report.rows.values():
        for run in row.runs:
            if largest := max(run.probes.get("floors", {}).get("share", [0.0])):
                eps = show(run.config.numeric_value("attn.eps"))
                sentences.append(
                    f"{row.name}, seed {run.config.seed}: at most {largest:.3%} of a layer's "
                    f"denominators are floored at attn.eps={eps} ({run.where})."
                )
    return sentences
