"""Sums over the past with weights that decay: o_i = sum over j <= i of gamma^(i-j) (q_i . k_j) v_j.

Three formulas of one thing. `parallel` holds T x T weights. `chunked` holds them within chunks of
C tokens, and between chunks the state S = sum_j gamma^(..) k_j v_j', so that time and memory grow
with T alone. Fed one token at a time with its state, it is the recurrence S <- gamma S + k v'.

Shapes: B batch, T position, H heads, K features of a key, V of a value; N chunks of C.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.model.attention.kernel import wide

CHUNK = 64


def parallel(q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_gamma_H: Tensor) -> Tensor:
    """Return o_BTHV by the whole triangle of weights."""
    decay_HTT = _triangle(q_BTHK.shape[1], log_gamma_H.to(wide(q_BTHK).dtype))
    weight_BHTT = torch.einsum("bihk,bjhk->bhij", q_BTHK, k_BTHK) * decay_HTT
    return torch.einsum("bhij,bjhv->bihv", weight_BHTT, v_BTHV)


def chunked(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_gamma_H: Tensor,
    state_BHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return o_BTHV and the state after the last token.

    Args:
        q_BTHK, k_BTHK, v_BTHV: products are taken in their dtype, sums over chunks in float32 at
            least.
        log_gamma_H: of each head's decay a token, 0 for none.
        state_BHKV: what came before; None: nothing.
    """
    # Sums over chunks stay wide; what is narrow already are q, k and v.
    with torch.autocast(q_BTHK.device.type, enabled=False):
        log_gamma_H = log_gamma_H.to(wide(q_BTHK).dtype)
        return _chunked(q_BTHK, k_BTHK, v_BTHV, log_gamma_H, state_BHKV)


def _chunked(
    q_BTHK: Tensor, k_BTHK: Tensor, v_BTHV: Tensor, log_gamma_H: Tensor, state_BHKV: Tensor | None
) -> tuple[Tensor, Tensor]:
    length = q_BTHK.shape[1]
    size = min(CHUNK, length)
    count = math.ceil(length / size)
    q_BHNCK, k_BHNCK, v_BHNCV = (_chunks(x, size, count) for x in (q_BTHK, k_BTHK, v_BTHV))
    dtype = v_BTHV.dtype

    # Within a chunk: the triangle of weights.
    decay_H1CC = _triangle(size, log_gamma_H)[:, None]
    weight_BHNCC = (wide(q_BHNCK @ k_BHNCK.mT) * decay_H1CC).to(dtype)
    within_BHNCV = weight_BHNCC @ v_BHNCV

    # What each chunk adds to the state, as of its last token.
    place_C = torch.arange(size, device=q_BTHK.device)
    to_end_H1C1 = _power(log_gamma_H, size - 1 - place_C)[:, None, :, None]
    added_BHNKV = wide((k_BHNCK * to_end_H1C1.to(dtype)).mT @ v_BHNCV)

    # The state before each chunk, and after the last: chunk m counts gamma^(C (n - 1 - m)) in n.
    before_HMN = _triangle(count, size * log_gamma_H)
    sums_BHNKV = torch.einsum("hnm,bhmkv->bhnkv", before_HMN, added_BHNKV)
    earlier_BHNKV = F.pad(sums_BHNKV[:, :, :-1], (0, 0, 0, 0, 1, 0))
    if state_BHKV is not None:
        chunks_N = torch.arange(count, device=q_BTHK.device)
        since_HN11 = _power(log_gamma_H, size * chunks_N)[:, :, None, None]
        earlier_BHNKV = earlier_BHNKV + since_HN11 * state_BHKV[:, :, None]

    from_start_H1C1 = _power(log_gamma_H, place_C + 1)[:, None, :, None]
    across_BHNCV = (q_BHNCK * from_start_H1C1.to(dtype)) @ earlier_BHNKV.to(dtype)

    # The last chunk may be short: the state is that of its last token.
    num_last = length - size * (count - 1)
    last_H1C1 = _power(log_gamma_H, num_last - 1 - place_C[:num_last])[:, :, None]
    added_BHKV = wide(
        (k_BHNCK[:, :, -1, :num_last] * last_H1C1.to(dtype)).mT @ v_BHNCV[:, :, -1, :num_last]
    )
    kept_H11 = (num_last * log_gamma_H).exp()[:, None, None]
    final_BHKV = kept_H11 * earlier_BHNKV[:, :, -1] + added_BHKV

    o_BHTV = (within_BHNCV + across_BHNCV).flatten(2, 3)[:, :, :length]
    return o_BHTV.transpose(1, 2), final_BHKV


def _chunks(x_BTHK: Tensor, size: int, count: int) -> Tensor:
    """Return [B, H, N, C, K], with zeros after the last token."""
    x_BHTK = x_BTHK.transpose(1, 2)
    padded = F.pad(x_BHTK, (0, 0, 0, size * count - x_BHTK.shape[2]))
    return torch.unflatten(padded, 2, (count, size))


def _triangle(length: int, log_gamma_H: Tensor) -> Tensor:
    """Return gamma^(i - j) for j <= i, and else 0; [H, T, T]."""
    place_T = torch.arange(length, device=log_gamma_H.device)
    steps_TT = place_T[:, None] - place_T
    # Before the exponential, whose gradient past the triangle would be infinite.
    power_HTT = (log_gamma_H[:, None, None] * steps_TT.clamp(min=0)).exp()
    return torch.where(steps_TT >= 0, power_HTT, 0.0)


def _power(log_gamma_H: Tensor, steps_N: Tensor) -> Tensor:
    """Return gamma^steps, [H, N]."""
    return (log_gamma_H[:, None] * steps_N).exp()
