"""The loss without one site's rotation, which shows how far the model depends on it."""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from rope_exp.probes._places import Places
from rope_exp.probes._windows import Finished, attentions, loss, rounded

ORDER = 3
PLACES = Places(ablation=("without", "loss"))


def ask(model: Finished) -> dict[str, Any]:
    """Return the loss as trained, and without each site's rotation."""
    layers = attentions(model.decoder)
    losses = {"": loss(model)}
    # Sites may rotate in different layers.
    for site in sorted({site for layer in layers for site in layer.sites}):
        with ExitStack() as stack:
            for layer in layers:
                stack.enter_context(patch.object(layer, "sites", layer.sites - {site}))
            losses[site] = loss(model)
    return {"without": list(losses), "loss": rounded(losses.values())}
