"""Drift of learned frequencies from their initial values.

Shapes: F frequencies; N rows of them: one per model, per layer, or per layer and head.
"""

from typing import Annotated, Any, Literal, NotRequired

import torch
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.evaluate import Finished, rounded, significant
from rope_exp.identity import Natural
from rope_exp.probes._types import ONE_LENGTH, Number, Numbers
from rope_exp.sections import PeConfig


class _Pair(TypedDict):
    theta0: Numbers
    theta: list[Numbers]
    median: Number
    crossings: NotRequired[Natural]


class Answer(TypedDict):
    """The frequencies of each pair of sites."""

    sites: dict[Literal["qk", "vo"], Annotated[_Pair, ONE_LENGTH]]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    return "" if config.pe.trainable else "drift needs frequencies that are learned: pe.trainable"


def ask(model: Finished) -> dict[str, Any]:
    """Return the learned and the initial frequencies of each pair of sites that learns them.

    Returns:
        By pair: the initial `theta0`; `theta` as used in rotation, for the layers in which the
        pair rotates; the median of |ln(theta/theta0)| over all of these; the sum of `crossings`
        of 0, if these were counted.
    """
    pe = model.decoder.architecture.pe
    rotary = model.decoder.model.rotary_emb
    sites = {}
    for pair in pe.trained_pairs:
        theta0_F = rotary.get_buffer(f"theta0_{pair}").double().cpu()
        theta = rotary.theta(pair).double().cpu()
        theta_NF = _rotating(theta, pe, pair).reshape(-1, len(theta0_F))
        moved_NF = (theta_NF / theta0_F).log().abs()

        answer: dict[str, Any] = {
            "theta0": significant(theta0_F),
            "theta": [significant(theta_F) for theta_F in theta_NF],
            "median": rounded(torch.quantile(moved_NF, 0.5)[None])[0],
        }
        if pair in model.crossings:
            answer["crossings"] = int(model.crossings[pair].sum())
        sites[pair] = answer
    return {"sites": sites}


def _rotating(theta: Tensor, pe: PeConfig, pair: str) -> Tensor:
    """Drop layers in which the pair does not rotate: their frequencies learn nothing."""
    if theta.ndim == 1:
        return theta
    return theta[[layer for layer in range(len(theta)) if {*pair} & {*pe.sites_of(layer)}]]
