"""The answers of a model of generated data: exact matches by span, and the loss, of each split.

Each token is predicted from the true tokens before it, which gives the same exact matches as greedy
decoding. Each split but the trained one is read in as many rows as there are held-out rows.

Shapes: N rows, B of a micro-batch, T positions, V vocabulary, E examples.
"""

from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.batches import NO_TARGET
from rope_exp.config import RunConfig
from rope_exp.evaluate import Finished, Inputs, rounded
from rope_exp.identity import Count, Natural
from rope_exp.kernels import wide
from rope_exp.probes._types import ONE_LENGTH, Number
from rope_exp.rows import TRAIN


class _OfSplit(TypedDict):
    span: list[Natural]
    count: list[Count]
    right: list[Natural]
    loss: Number


Answer = dict[str, Annotated[_OfSplit, ONE_LENGTH]]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    return "" if config.data.task else "answers are asked of generated data, such as data=addition"


def ask(model: Finished) -> dict[str, Any]:
    """Return, for each split, the examples of each span, those without a wrong token, the loss."""
    found = {}
    for split in model.data.facts.splits:
        if split == TRAIN:
            continue
        rows = model.data.rows(split, range(model.config.train.eval_sequences))
        parts = [
            _right_and_nats(model.decoder(inputs.ids_BT), inputs)
            for inputs in model.batches(rows.batch, model.rows_at_once)
        ]
        right_NT, nats_NT = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
        span_E, is_match_E = rows.exact_matches(right_NT.numpy())
        spans, counts = np.unique(span_E, return_counts=True)
        found[split] = {
            "span": spans.tolist(),
            "count": counts.tolist(),
            "right": [int(is_match_E[span_E == span].sum()) for span in spans],
            "loss": rounded([nats_NT.double().sum() / rows.batch.num_targets])[0],
        }
    return found


def _right_and_nats(logits_BTV: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return, as [B, T], whether each prediction is right, and -log p; 0 without a target."""
    logits_BTV = wide(logits_BTV)
    right_BT = logits_BTV.argmax(dim=-1) == inputs.target_BP
    nats_BT = F.cross_entropy(
        logits_BTV.mT, inputs.target_BP, reduction="none", ignore_index=NO_TARGET
    )
    return right_BT, nats_BT
