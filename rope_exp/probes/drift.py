"""Drift of learned frequencies from their initial values.

Shapes: F frequencies; N rows of them: one per model, per layer, or per layer and head.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rope_exp.decoder import Decoder
from rope_exp.evaluate import Probes, rounded, significant
from rope_exp.sections import PeConfig


def drifted(decoder: Decoder, crossings: Mapping[str, Tensor]) -> Probes:
    """Return the learned and the initial frequencies of each pair of sites that learns them.

    Args:
        crossings: how often each learned frequency has crossed 0, for each pair that is counted.
    Returns:
        By pair: the initial `theta0`; `theta` as used in rotation, for the layers in which the
        pair rotates; the median of |ln(theta/theta0)| over all of these; the sum of `crossings`.
    """
    pe = decoder.architecture.pe
    rotary = decoder.model.rotary_emb
    sites = {}
    for pair in pe.trained_pairs:
        theta0_F = rotary.get_buffer(f"theta0_{pair}").double().cpu()
        theta = rotary.theta(pair).double().cpu()
        theta_NF = _rotating(theta, pe, pair).reshape(-1, len(theta0_F))
        moved_NF = (theta_NF / theta0_F).log().abs()

        answer: Probes = {
            "theta0": significant(theta0_F),
            "theta": [significant(theta_F) for theta_F in theta_NF],
            "median": rounded(torch.quantile(moved_NF, 0.5)[None])[0],
        }
        if pair in crossings:
            answer["crossings"] = int(crossings[pair].sum())
        sites[pair] = answer
    return {"sites": sites}


def _rotating(theta: Tensor, pe: PeConfig, pair: str) -> Tensor:
    """Drop layers in which the pair does not rotate: their frequencies learn nothing."""
    if theta.ndim == 1:
        return theta
    return theta[[layer for layer in range(len(theta)) if {*pair} & {*pe.sites_of(layer)}]]
