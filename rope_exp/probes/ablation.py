"""The loss without one site's rotation, which shows how far the model depends on it."""

from contextlib import ExitStack
from typing import Annotated, Any, Literal
from unittest.mock import patch

from typing_extensions import TypedDict

from rope_exp.evaluate import Finished, rounded
from rope_exp.probes._types import ONE_LENGTH, Numbers
from rope_exp.probes._windows import attentions, loss

ORDER = 3
PLACES = {"ablation": ("without", "loss")}


class _Losses(TypedDict):
    without: list[Literal["", "q", "k", "v", "o"]]
    loss: Numbers


Answer = Annotated[_Losses, ONE_LENGTH]


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
