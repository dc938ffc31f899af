"""The loss of every held-out window, for a paired bootstrap over windows."""

from typing import Any

from typing_extensions import TypedDict

from rope_exp.probes._answer import Numbers
from rope_exp.probes._windows import Finished, always, nats, rounded, windows
from rope_exp.report import Part


class Answer(TypedDict):
    """The content of an answer."""

    loss: Numbers


ANSWER = Answer

why_not = always


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the loss of each held-out window."""
    windows_NS = windows(trainer, trainer.config.train.seq_len, fraction_of=1)
    return {"loss": rounded(nats(trainer, windows_NS).mean(dim=1))}


REPORT = Part()
