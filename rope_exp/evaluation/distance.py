"""Trained attention by distance: mean weights, the decay bound, and each head's kappa.

Shapes: B rows, T positions, H query heads, G key/value heads, K features of a head, M distances.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rope_exp.evaluation.contexts import attentions, weighed
from rope_exp.evaluation.inputs import Inputs
from rope_exp.evaluation.values import Probes, significant
from rope_exp.model.attention.base import Attention
from rope_exp.model.decoder import Decoder
from rope_exp.model.distance import attention_by_distance, decay_bound, kappa, uniform_by_distance


class _Seen(NamedTuple):
    """Statistics of a layer's attention in one window, as means in float64."""

    attention_M: Tensor  # A(m), at every distance below T/2
    q_HK: Tensor  # before rotation, likewise k
    k_GK: Tensor


def by_distance(decoder: Decoder, windows: Iterable[Inputs], distances: Sequence[int]) -> Probes:
    """Return A(m) of each layer, beside that of uniform weights, f(m) and kappa(m).

    f(m) and kappa(m) cover layers in which q and k both rotate: f is the mean over these layers,
    and over their heads if those have their own frequencies; kappa is given for each query head.

    Args:
        windows: batches of one window each, at least one; all of one length.
        distances: m, below T/2.
    """
    layers = attentions(decoder)
    seen: list[list[_Seen]] = [[] for _ in layers]
    with ExitStack() as stack:
        for layer, of_layer in zip(layers, seen, strict=True):
            stack.enter_context(weighed(layer, partial(_see, of_layer)))
        for inputs in windows:
            inputs.features(decoder)
    means = [_mean(of_layer) for of_layer in seen]

    architecture = decoder.architecture
    num_positions = inputs.ids_BT.shape[1]
    uniform_M = uniform_by_distance(
        num_positions, architecture.model.window, causal=architecture.causal
    )
    answer: Probes = {
        "m": list(distances),
        "attention": {
            str(number): significant(mean.attention_M[[*distances]])
            for number, mean in enumerate(means)
        },
        "uniform": significant(uniform_M[[*distances]]),
    }
    return answer | _of_rotation(decoder, means, torch.tensor(distances))


def _see(seen: list[_Seen], weights_BHTT: Tensor, q_BTHK: Tensor, k_BTGK: Tensor) -> None:
    found = (
        attention_by_distance(weights_BHTT),
        q_BTHK.double().mean(dim=(0, 1)),
        k_BTGK.double().mean(dim=(0, 1)),
    )
    seen.append(_Seen(*(mean.cpu() for mean in found)))


def _mean(seen: Sequence[_Seen]) -> _Seen:
    """Return the mean over windows, which have one length."""
    return _Seen(*(torch.stack(each).mean(dim=0) for each in zip(*seen, strict=True)))


def _of_rotation(decoder: Decoder, means: Sequence[_Seen], distance_M: Tensor) -> Probes:
    """Return f(m) and kappa(m); {} if q and k rotate together in no layer."""
    theta = decoder.model.rotary_emb.theta("qk").double().cpu()
    bounds = []
    of_heads = {}
    for number, layer in enumerate(attentions(decoder)):
        if {"q", "k"} <= layer.sites:
            own = theta if theta.ndim == 1 else theta[number]
            bounds.append(decay_bound(own, distance_M).reshape(-1, len(distance_M)).mean(dim=0))
            of_heads[str(number)] = _kappas(layer, means[number], own, distance_M)
    if not bounds:
        return {}
    return {"bound": significant(torch.stack(bounds).mean(dim=0)), "kappa": of_heads}


def _kappas(
    layer: Attention, mean: _Seen, theta: Tensor, distance_M: Tensor
) -> list[list[float | None]]:
    """Return kappa(m) of each head of a layer."""
    # The features that may rotate are a head's last.
    num_left = mean.q_HK.shape[1] - layer.rotary_dim
    q_HK, k_GK = (x.roll(-num_left, dims=1) for x in (mean.q_HK, mean.k_GK))
    return [significant(kappa_M) for kappa_M in kappa(q_HK, k_GK, theta, distance_M)]
