"""The loss without one site's rotation, which shows how far the model depends on it."""

from typing import Any

from torch import Tensor

from rope_exp.probes._places import Places
from rope_exp.probes._windows import Finished, always, attentions, loss, replaced, rounded
from rope_exp.report import Part

why_not = always


def ask(model: Finished) -> dict[str, Any]:
    """Return the loss as trained, and without each site's rotation."""

    def loss_without(site: str) -> Tensor:
        with replaced(model.decoder, "sites", lambda layer: layer.sites - {site}):
            return loss(model)

    # Sites may rotate in different layers.
    rotating = sorted({site for layer in attentions(model.decoder) for site in layer.sites})
    losses = {site: loss_without(site) for site in ["", *rotating]}
    return {"without": list(losses), "loss": rounded(losses.values())}


REPORT = Part(order=3, places=Places(ablation=("without", "loss")))
