"""How often eps replaces a denominator of attention, because the sum there is smaller."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.errors import show
from rope_exp.evaluate import Finished, rounded
from rope_exp.probes._types import Numbers
from rope_exp.probes._windows import attentions, instead, loss
from rope_exp.report import Report

# Below other notes of probes.
ORDER = 6


class Answer(TypedDict):
    """The share of each layer."""

    share: Numbers


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    attn = config.attn
    return "" if attn.has_floors else f"attn.kind={attn.kind} cannot be asked for floors"


def ask(model: Finished) -> dict[str, Any]:
    """Return the share of the denominators that eps floors, by layer.

    The share is over all positions and heads of the windows that shift and ablation read.
    """
    with ExitStack() as stack:
        seen = [stack.enter_context(floored(layer)) for layer in attentions(model.decoder)]
        loss(model)
    return {"share": rounded([torch.cat(parts).double().mean() for parts in seen])}


@contextmanager
def floored(layer: Any) -> Iterator[list[Tensor]]:
    """Record, for each division in a layer, whether eps replaces its denominator."""
    seen: list[Tensor] = []
    below = layer.below

    def watched(results: Sequence[Tensor]) -> Tensor:
        norm_BTH1: Tensor = below(results)
        seen.append((norm_BTH1 < layer.attn.eps).flatten())
        return norm_BTH1

    with instead(layer, "below", watched):
        yield seen


def notes(report: Report) -> list[str]:
    """Return a note for each run in which eps floors a denominator."""
    said = []
    for row in report.rows.values():
        for run in row.runs:
            most = max(run.probes.get("floors", {}).get("share", [0.0]))
            if most:
                said.append(
                    f"{row.name}, seed {run.config.seed}: at most {most:.3%} of a layer's "
                    "denominators are floored at "
                    f"attn.eps={show(run.config.numeric_value('attn.eps'))} ({run.where})."
                )
    return said
