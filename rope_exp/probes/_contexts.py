"""Context managers that observe or change a finished decoder.

Shapes: B rows, T positions, H query heads, G key/value heads, K features of a head, V of a value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from rope_exp.attention import Attention, LayerCache, Positions, turned
from rope_exp.decoder import Decoder
from rope_exp.kernels import wide

# Receives weights_BHTT, and q_BTHK and k_BTGK before rotation.
See = Callable[[Tensor, Tensor, Tensor], None]


def attentions(decoder: Decoder) -> list[Attention]:
    """Return the attention module of each layer, first to last."""
    return [module for module in decoder.modules() if isinstance(module, Attention)]


@contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an object another value of an attribute, or another method, while the context lasts."""
    # Inside another such context, restore that context's value.
    own = vars(owner)
    is_own, earlier = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        if is_own:
            setattr(owner, name, earlier)


# -- observing -------------------------------------------------------------------------------------


@contextmanager
def floored(layer: Any) -> Iterator[list[Tensor]]:
    """Record, for each division in a layer, whether eps replaces its denominator."""
    seen: list[Tensor] = []
    below = layer.below

    def watched(found: Mapping[str, Tensor]) -> Tensor:
        norm_BTH1 = below(found)
        seen.append((norm_BTH1 < layer.attn.eps).flatten())
        return norm_BTH1

    with instead(layer, "below", watched):
        yield seen


@contextmanager
def weighed(layer: Attention, see: See) -> Iterator[None]:
    """Pass a layer's softmax weights to `see`, in float32 at least, while the context lasts.

    Attention is linear in its values. If value j is the j-th unit vector, its output is the weights
    themselves. So the layer's own attention computes them, with its mask, window and bias, and no
    second formula can disagree with it.
    """
    attend = layer.attend

    def watched(
        q_BTHK: Tensor,
        k_BTGK: Tensor,
        values: Sequence[Tensor],
        at: Positions,
        cache: LayerCache | None,
    ) -> Tensor:
        with torch.autocast(q_BTHK.device.type, enabled=False):
            q = wide(q_BTHK)
            k = wide(k_BTGK)
            unit_TT = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
            unit_BTGT = unit_TT[:, None].expand(*k.shape[:3], -1)
            weights_BHTT = attend(q, k, [unit_BTGT], at, cache).transpose(1, 2)
            see(weights_BHTT, _unturned(layer, "q", q, at), _unturned(layer, "k", k, at))
        return attend(q_BTHK, k_BTGK, values, at, cache)

    with instead(layer, "attend", watched):
        yield


def _unturned(layer: Attention, site: str, x_BTHK: Tensor, at: Positions) -> Tensor:
    """Return x as it was before its site's rotation."""
    if site not in layer.sites:
        return x_BTHK
    return turned(x_BTHK, at.tables(site), layer.rotary_dim, inverse=True)


# -- changing --------------------------------------------------------------------------------------


@contextmanager
def switched_off(decoder: Decoder, site: str) -> Iterator[None]:
    """Disable one site's rotation in every layer while the context lasts."""
    with ExitStack() as stack:
        for layer in attentions(decoder):
            stack.enter_context(instead(layer, "sites", layer.sites - {site}))
        yield


@contextmanager
def turning_by(decoder: Decoder, theta: Mapping[str, Tensor]) -> Iterator[None]:
    """Rotate pairs of sites by other frequencies in every layer while the context lasts.

    Args:
        theta: frequencies by pair, qk or vo, in the decoder's shape; missing pairs keep their own.
    """
    rotary = decoder.model.rotary_emb
    usual = rotary.theta

    def other(pair: str) -> Tensor:
        return theta[pair] if pair in theta else usual(pair)

    with instead(rotary, "theta", other):
        yield


@contextmanager
def scores_times(decoder: Decoder, factor: float) -> Iterator[None]:
    """Multiply the scale of all layers' scores while the context lasts.

    The factor multiplies the queries of a softmax, so a bias, v and o do not change. Kinds with a
    state have no softmax and are not changed.
    """
    with ExitStack() as stack:
        for layer in attentions(decoder):
            stack.enter_context(instead(layer, "attend", _scaled(layer, factor)))
        yield


def _scaled(layer: Attention, factor: float) -> Callable[..., Tensor]:
    """Return a layer's `attend` with its queries multiplied by a factor."""
    attend = layer.attend

    def scaled(q_BTHK: Tensor, *others: Any) -> Tensor:
        return attend(q_BTHK * factor, *others)

    return scaled
