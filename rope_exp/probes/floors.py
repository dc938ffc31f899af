"""The share of attention's denominators that eps replaces, because the sum is smaller."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.errors import show
from rope_exp.probes._answer import Numbers
from rope_exp.probes._windows import Finished, loss, replaced, rounded
from rope_exp.report import Part, Report


class Answer(TypedDict):
    """The content of an answer."""

    # By layer.
    share: Numbers


ANSWER = Answer


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    attn = config.attn
    if not getattr(attn, "has_floors", False):
        return f"attn.kind={attn.kind} cannot be asked for floors"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the share of the denominators that eps floors, by layer, over positions and heads."""
    is_floored: dict[Any, list[Tensor]] = defaultdict(list)

    def watched(layer: Any) -> Callable[[Any], Tensor]:
        below = layer.below

        def watch(sums: Any) -> Tensor:
            norm_BTH1: Tensor = below(sums)
            is_floored[layer].append((norm_BTH1 < layer.attn.eps).flatten())
            return norm_BTH1

        return watch

    with replaced(trainer.decoder, "below", watched):
        loss(trainer)
    return {"share": rounded(torch.cat(seen).double().mean() for seen in is_floored.values())}


def notes(report: Report) -> list[str]:
    """Return a note for each run in which eps floors a denominator."""
    sentences = []
    for row in report.rows.values():
        for run in row.runs:
            shares = [share or 0.0 for share in run.probes.get("floors", {}).get("share", [])]
            largest = max(shares, default=0.0)
            if largest:
                eps = show(run.config.affecting_value("attn.eps"))
                sentences.append(
                    f"{row.name}, seed {run.config.seed}: at most {largest:.3%} of a layer's "
                    f"denominators are floored at attn.eps={eps} ({run.where})."
                )
    return sentences


REPORT = Part(order=6, notes=notes)
