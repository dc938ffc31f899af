"""Effects of distance on attention: a bound on scores, mean weights, and each head's kappa.

Functions of plain tensors, in float64, for the probes of a finished model. Distance m lies between
query i and key i - m, so it is 0 at the query's own token.

Shapes: B rows, T positions, H query heads, G key/value heads, K features of a head, F frequencies,
M distances.
"""

import torch
from torch import Tensor

from rope_exp.model.rope import angles, rotate


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
