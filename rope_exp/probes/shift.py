"""The held-out loss with all positions raised, which relative variants do not notice."""

from typing import Annotated, Any
from unittest.mock import patch

from typing_extensions import TypedDict

from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._places import Places
from rope_exp.probes._windows import Finished, always, loss, rounded
from rope_exp.report import Part
from rope_exp.sections import Natural

SHIFTS = (0, 0.25, 1, 4, 16)  # in training lengths: from within the first window to far outside


class Answer(TypedDict):
    """The content of an answer."""

    start: list[Natural]
    loss: Numbers


ANSWER = Annotated[Answer, of_one_length("start", "loss")]

why_not = always


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the loss with every position `start` higher than in training."""
    seq_len = trainer.config.train.seq_len
    trunk = trainer.decoder.model
    losses = {}
    for start in [int(shift * seq_len) for shift in SHIFTS]:
        # Learned positions end at their number.
        last = trunk.start + start + seq_len
        if trunk.num_positions is None or last <= trunk.num_positions:
            with patch.object(trunk, "start", trunk.start + start):
                losses[start] = loss(trainer)
    return {"start": list(losses), "loss": rounded(losses.values())}


REPORT = Part(order=2, places=Places(shift=("start", "loss")))
