"""Effects of distance on attention: mean weights, a bound on scores, and each head's kappa.

Distance m lies between query i and key i - m. Shapes: B rows, T positions, H query heads,
G key/value heads, K features of a head, F frequencies, M distances.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any, NotRequired

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.attention import Attention, Positions, at_least_float32, rotate_last
from rope_exp.batches import read
from rope_exp.config import RunConfig
from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._places import Places
from rope_exp.probes._windows import (
    Finished,
    batches,
    bin_edges,
    replaced,
    significant,
    windows,
)
from rope_exp.report import Part
from rope_exp.rope import rotate
from rope_exp.sections import Natural


class Answer(TypedDict):
    """The content of an answer."""

    m: list[Natural]
    # By layer.
    attention: Annotated[dict[str, Numbers], Field(min_length=1)]
    uniform: Numbers
    bound: NotRequired[Numbers]
    # By layer and query head.
    kappa: NotRequired[dict[str, list[Numbers]]]


ANSWER = Annotated[Answer, of_one_length("m", "attention", "uniform", "bound", "kappa")]


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


def ask(trainer: Finished) -> dict[str, Any]:
    """Return A(m) of each layer, beside that of uniform weights, f(m) and kappa(m).

    f(m), a mean over layers and heads, and kappa(m) of each query head cover layers in which q and
    k both rotate. Distances lie below half a window, half an octave apart.
    """
    decoder = trainer.decoder
    length = trainer.config.train.seq_len
    rows = read(trainer.config, trainer.data, windows(trainer, length))
    # By layer and window: A(m) at every distance below T/2, and the means q_HK and k_GK.
    seen: dict[Attention, list[tuple[Tensor, ...]]] = defaultdict(list)

    def see(layer: Attention, weights_BHTT: Tensor, q_BTHK: Tensor, k_BTGK: Tensor) -> None:
        means = (x.double().mean(dim=(0, 1)).cpu() for x in (q_BTHK, k_BTGK))
        seen[layer].append((attention_by_distance(weights_BHTT).cpu(), *means))

    with replaced(decoder, "attend", lambda layer: weighed(layer, see)):
        for inputs in batches(trainer, rows, at_once=1):
            decoder.model(inputs.ids_BT, position_BT=inputs.position_BT)

    distances = bin_edges((length + 1) // 2)[:-1]
    distance_M = torch.tensor(distances)
    theta = decoder.model.rotary_emb.theta("qk").double().cpu()
    attention = {}
    kappas = {}
    bounds = []
    for number, (layer, parts) in enumerate(seen.items()):
        # Windows have one length.
        A_M, q_HK, k_GK = (torch.stack(x).mean(dim=0) for x in zip(*parts, strict=True))
        attention[str(number)] = significant(A_M[distances])
        if {"q", "k"} <= layer.sites:
            layer_theta = theta if theta.ndim == 1 else theta[number]
            bound = decay_bound(layer_theta, distance_M)
            bounds.append(bound.reshape(-1, len(distances)).mean(dim=0))
            # The features that may rotate are a head's last; `kappa` takes them first.
            q_HK, k_GK = (x.roll(layer.rotary_dim, dims=1) for x in (q_HK, k_GK))
            kappa_HM = kappa(q_HK, k_GK, layer_theta, distance_M)
            kappas[str(number)] = [significant(kappa_M) for kappa_M in kappa_HM]

    # All keys of a query weigh the same.
    reached_TT = torch.ones(length, length, dtype=torch.float64)
    if decoder.architecture.causal:
        reached_TT = reached_TT.tril().triu(1 - (decoder.architecture.model.window or length))
    uniform_M = attention_by_distance(reached_TT / reached_TT.sum(dim=-1, keepdim=True))
    uniform = significant(uniform_M[distances])
    answer = {"m": distances, "attention": attention, "uniform": uniform}
    if bounds:
        answer |= {"bound": significant(torch.stack(bounds).mean(dim=0)), "kappa": kappas}
    return answer


def decay_bound(theta_F: Tensor, distance_M: Tensor) -> Tensor:
    """Return f(m), the long-range decay of a rotated score's bound (Su 2021, after eq. 16).

    f(m) = (1/F) sum_{j=1..F} |S_j|, where S_j = sum_{f<j} e^{I m theta_f}. With h_f = q_f k_f^* of
    each pair as a complex number, and h_F = 0, summation by parts bounds the score at distance m:

        |sum_f h_f e^{I m theta_f}| <= F f(m) max_f |h_{f+1} - h_f|.

    theta_F is in the order of the pairs, on which f depends; or [..., F] of layers or heads.
    """
    angle_MF = distance_M.double()[:, None] * theta_F.double()[..., None, :]
    partial_sum_MF = torch.polar(torch.ones_like(angle_MF), angle_MF).cumsum(-1)
    return partial_sum_MF.abs().mean(-1)


def attention_by_distance(weights_BHTT: Tensor) -> Tensor:
    """Return A_M, the mean weight on the key m before the query, for m = 0, 1, ... below T/2.

    The mean is over rows, heads and the queries i >= T/2, which have a key at every such distance.
    """
    first = (weights_BHTT.shape[-1] + 1) // 2
    means = []
    for distance in range(first):
        # The n-th weight of this diagonal belongs to query n + distance.
        weights_BHN = weights_BHTT.diagonal(-distance, dim1=-2, dim2=-1)
        means.append(weights_BHN[..., first - distance :].double().mean())
    return torch.stack(means)


def kappa(q_HK: Tensor, k_GK: Tensor, theta_F: Tensor, distance_M: Tensor) -> Tensor:
    """Return kappa(m) = q^T R_{-m} k / sqrt(K), a head's score by distance, whatever the content.

    q and k are a head's means before rotation; both rotate, so a query at i and a key at i - m give
    (R_i q)^T (R_{i-m} k) = q^T R_{-m} k. As scores are linear in q and k, kappa(m) is the mean
    score at distance m over all pairs of a query and a key of the rows. theta_F may be [G, F]. The
    first 2F features rotate, in half-split pairs.
    """
    num_heads, num_features = q_HK.shape
    angle_GMF = distance_M.double()[:, None] * theta_F.double()[..., None, :]
    k_GM1K = k_GK.double()[:, None, None].expand(-1, len(distance_M), 1, -1)
    k_GM1K = rotate(k_GM1K, angle_GMF.cos(), angle_GMF.sin(), inverse=True)

    k_HMK = k_GM1K[:, :, 0].repeat_interleave(num_heads // len(k_GK), dim=0)
    return torch.einsum("hk,hmk->hm", q_HK.double(), k_HMK) / num_features**0.5


def weighed(layer: Attention, see: Callable[..., None]) -> Callable[..., Tensor]:
    """Return `attend` that calls `see` with the layer, its weights_BHTT and unrotated q and k.

    If value j is the j-th unit vector, attention's output is the weights themselves. So the layer's
    own attention computes them, and no second formula can disagree with it.
    """
    attend = layer.attend

    def watched(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGV: Tensor, positions: Positions) -> Tensor:
        with torch.autocast(q_BTHK.device.type, enabled=False):
            q = at_least_float32(q_BTHK)
            k = at_least_float32(k_BTGK)
            unit_TT = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
            unit_BTGT = unit_TT[:, None].expand(*k.shape[:3], -1)
            weights_BHTT = attend(q, k, unit_BTGT, positions).transpose(1, 2)
            # As they were before their site's rotation.
            if "q" in layer.sites:
                q = rotate_last(q, positions.tables("q"), layer.rotary_dim, inverse=True)
            if "k" in layer.sites:
                k = rotate_last(k, positions.tables("k"), layer.rotary_dim, inverse=True)
            see(layer, weights_BHTT, q, k)
        return attend(q_BTHK, k_BTGK, v_BTGV, positions)

    return watched


REPORT = Part(order=6, places=Places(distance=("m", "attention"), uniform=("m", "uniform")))
