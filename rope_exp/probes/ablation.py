"""The loss without one site's rotation, which shows how far the model depends on it."""

from typing import Annotated, Any, Literal

from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._places import Places
from rope_exp.probes._windows import Finished, always, attentions, loss, replaced, rounded
from rope_exp.report import Part


class Answer(TypedDict):
    """The content of an answer."""

    # The site that does not rotate; empty: as trained.
    without: list[Literal["", "q", "k", "v", "o"]]
    loss: Numbers


ANSWER = Annotated[Answer, of_one_length("without", "loss")]

why_not = always


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the loss as trained, and without each site's rotation."""

    def loss_without(site: str) -> Tensor:
        with replaced(trainer.decoder, "sites", lambda layer: layer.sites - {site}):
            return loss(trainer)

    # Sites may rotate in different layers.
    rotating = sorted({site for layer in attentions(trainer.decoder) for site in layer.sites})
    losses = {site: loss_without(site) for site in ["", *rotating]}
    return {"without": list(losses), "loss": rounded(losses.values())}


REPORT = Part(order=3, places=Places(ablation=("without", "loss")))
