"""The held-out loss with all positions raised, which relative variants do not notice."""

from typing import Any
from unittest.mock import patch

from rope_exp.probes._places import Places
from rope_exp.probes._windows import Finished, always, loss, rounded
from rope_exp.report import Part

SHIFTS = (0, 0.25, 1, 4, 16)  # in training lengths: from within the first window to far outside

why_not = always


def ask(model: Finished) -> dict[str, Any]:
    """Return the loss with every position `start` higher than in training."""
    seq_len = model.config.train.seq_len
    trunk = model.decoder.model
    losses = {}
    for start in [int(shift * seq_len) for shift in SHIFTS]:
        # Learned positions end at their number.
        last = trunk.start + start + seq_len
        if trunk.num_positions is None or last <= trunk.num_positions:
            with patch.object(trunk, "start", trunk.start + start):
                losses[start] = loss(model)
    return {"start": list(losses), "loss": rounded(losses.values())}


REPORT = Part(order=2, places=Places(shift=("start", "loss")))
