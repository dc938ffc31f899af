"""Effects of distance on attention: mean weights, a bound on scores, and each head's kappa.

Distance m lies between query i and key i - m, so it is 0 at the query's own token.

Shapes: B rows, T positions, H query heads, G key/value heads, K features of a head, V of a value,
F frequencies, M distances.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated, Any, NamedTuple, NotRequired

import torch
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.attention import Attention, LayerCache, Positions, turned
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.evaluate import Finished, significant
from rope_exp.identity import Natural
from rope_exp.kernels import wide
from rope_exp.probes._types import ONE_LENGTH, Digits, Numbers
from rope_exp.probes._windows import attentions, bin_edges, instead, share, windows
from rope_exp.rope import angles, rotate
from rope_exp.sources import read

ORDER = 6
PLACES = {"distance": ("m", "attention"), "uniform": ("m", "uniform")}
# Receives weights_BHTT, and q_BTHK and k_BTGK before rotation.
See = Callable[[Tensor, Tensor, Tensor], None]


class _Numbers(TypedDict):
    m: list[Natural]
    attention: dict[Digits, Numbers]
    uniform: Numbers
    bound: NotRequired[Numbers]
    kappa: NotRequired[dict[Digits, list[Numbers]]]


Answer = Annotated[_Numbers, ONE_LENGTH]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    if not config.attn.keeps_keys:
        return f"attn.kind={config.attn.kind} cannot be asked for distance"
    if config.train.seq_len < 2:
        return "distance needs train.seq_len of at least 2"
    if config.model.window_layers:
        return "distance has one uniform baseline: no model.window_layers"
    if config.data.document_mask:
        return "distance would read across documents; no data.document_mask"
    return ""


def ask(model: Finished) -> dict[str, Any]:
    """Return A(m) of each layer, beside that of uniform weights, f(m) and kappa(m).

    f(m) and kappa(m) cover layers in which q and k both rotate: f is the mean over these layers,
    and over their heads if those have their own frequencies; kappa is given for each query head.
    Distances lie below half a window, half an octave apart. The windows are those that shift and
    ablation read.
    """
    decoder = model.decoder
    length = model.config.train.seq_len
    rows = read(model.config, model.data, windows(model, share(model), length))
    layers = attentions(decoder)
    seen: list[list[_Seen]] = [[] for _ in layers]
    with ExitStack() as stack:
        for layer, of_layer in zip(layers, seen, strict=True):
            stack.enter_context(weighed(layer, partial(_see, of_layer)))
        for inputs in model.batches(rows, at_once=1):
            inputs.features(decoder)
    means = [_mean(of_layer) for of_layer in seen]

    distances = bin_edges((length + 1) // 2)[:-1]
    uniform_M = uniform_by_distance(
        length, decoder.architecture.model.window, causal=decoder.architecture.causal
    )
    answer = {
        "m": distances,
        "attention": {
            str(number): significant(mean.attention_M[distances])
            for number, mean in enumerate(means)
        },
        "uniform": significant(uniform_M[distances]),
    }
    return answer | _of_rotation(decoder, means, torch.tensor(distances))


def decay_bound(theta_F: Tensor, distance_M: Tensor) -> Tensor:
    """Return f(m), the long-range decay of a rotated score's bound (Su 2021, after eq. 16).

    f(m) = (1/F) sum_{j=1..F} |S_j|, where S_j = sum_{f<j} e^{I m theta_f}. With h_f = q_f k_f^* of
    each pair as a complex number, and h_F = 0, summation by parts bounds the score at distance m:

        |sum_f h_f e^{I m theta_f}| <= F f(m) max_f |h_{f+1} - h_f|.

    This is the largest possible effect of distance; the bound is far from tight.

    Args:
        theta_F: in radians a position and in the order of the pairs, on which f depends; or
            [..., F], if layers or heads have their own.
        distance_M: any real numbers.
    Returns:
        f_M, from 0 to f(0) = (F + 1)/2; or [..., M].
    """
    angle_MF = distance_M.double()[:, None] * theta_F.double()[..., None, :]
    partial_sum_MF = torch.polar(torch.ones_like(angle_MF), angle_MF).cumsum(-1)
    return partial_sum_MF.abs().mean(-1)


def attention_by_distance(weights_BHTT: Tensor) -> Tensor:
    """Return A(m), the mean weight on the key m before the query, for m = 0, 1, ... below T/2.

    The mean is over rows, heads and the queries i >= T/2. Each such query has a key at every such
    distance, so all distances average over the same queries.

    Args:
        weights_BHTT: weight of query i on key j at [..., i, j], causal; or any [..., T, T].
    Returns:
        A_M in float64; M is T/2, rounded up.
    """
    first = _first_query(weights_BHTT.shape[-1])
    means = []
    for distance in range(first):
        # The n-th weight of this diagonal belongs to query n + distance.
        weights_BHN = weights_BHTT.diagonal(-distance, dim1=-2, dim2=-1)
        means.append(weights_BHN[..., first - distance :].double().mean())
    return torch.stack(means)


def uniform_by_distance(
    num_positions: int, window: int | None = None, *, causal: bool = True
) -> Tensor:
    """Return `attention_by_distance` of queries that weigh all their keys equally.

    Query i has i + 1 keys, which gives the same number at every distance, about 2 ln(2)/T. In a
    window it has the last w of them, and none from distance w on. If not causal, it has all T.

    Args:
        num_positions: T, at least 2.
        window: w; None: no window.
        causal: whether queries attend to no later key.
    """
    first = _first_query(num_positions)
    reach = window or num_positions
    num_keys = torch.arange(first + 1, num_positions + 1, dtype=torch.float64).clamp(max=reach)
    if not causal:
        num_keys = torch.full_like(num_keys, num_positions)
    return torch.where(torch.arange(first) < reach, num_keys.reciprocal().mean(), 0.0)


def kappa(q_HK: Tensor, k_GK: Tensor, theta_F: Tensor, distance_M: Tensor) -> Tensor:
    """Return kappa(m) = q^T R_{-m} k / sqrt(K), a head's score by distance, whatever the content.

    q and k are a head's means before rotation, over rows and positions. A query at i and a key at
    i - m give (R_i q)^T (R_{i-m} k) = q^T R_{-m} k, so R_{-m} rotates the key clockwise by its
    distance before the query. A score is linear in q and in k, so kappa(m) is the mean score at
    distance m over all pairs of a query and a key of the rows, wherever they come from. The common
    content of tokens that really are m apart adds to it.

    It applies to attention in which both q and k rotate.

    Args:
        q_HK: the mean query of each head.
        k_GK: the mean key of each key/value head, which serves H/G query heads in order.
        theta_F: in radians a position; or [G, F], if key/value heads have their own. The first
            2F features rotate, in half-split pairs. For a kind that rotates its last features, put
            these first: an inner product has no order.
        distance_M: any real numbers, positive where the key comes before the query.
    Returns:
        kappa_HM in float64, a term of the logit.
    """
    num_heads, num_features = q_HK.shape
    of_heads = zip(k_GK.double(), theta_F.double().expand(len(k_GK), -1), strict=True)
    k_GMK = torch.stack([_turned_back(k_K, own_F, distance_M) for k_K, own_F in of_heads])

    k_HMK = k_GMK.repeat_interleave(num_heads // len(k_GK), dim=0)
    return torch.einsum("hk,hmk->hm", q_HK.double(), k_HMK) / num_features**0.5


def _first_query(num_positions: int) -> int:
    """Return the first i >= T/2."""
    return (num_positions + 1) // 2


def _turned_back(x_K: Tensor, theta_F: Tensor, distance_M: Tensor) -> Tensor:
    """Return R_{-m} x for each distance m, of shape [M, K]."""
    angle_MF = angles(theta_F, distance_M)
    x_1M1K = x_K.expand(1, len(distance_M), 1, -1)
    return rotate(x_1M1K, angle_MF.cos(), angle_MF.sin(), inverse=True)[0, :, 0]


class _Seen(NamedTuple):
    """Statistics of a layer's attention in one window, as means in float64."""

    attention_M: Tensor  # A(m), at every distance below T/2
    q_HK: Tensor  # before rotation, likewise k
    k_GK: Tensor


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


def _of_rotation(decoder: Decoder, means: Sequence[_Seen], distance_M: Tensor) -> dict[str, Any]:
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
