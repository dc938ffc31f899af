"""Sums over the past with weights that decay: o_i = sum over j <= i of gamma^(i-j) (q_i' k_j) v_j.

There are three equivalent formulas. `parallel` holds T x T weights. `chunked` holds weights within
chunks of C tokens, and between chunks the state S = sum_j gamma^(..) k_j v_j'. Its time and memory
grow linearly with T, except for the sums of states over chunks: (T/C)^2 K V operations, an eighth
of the rest at T = 2,048 and a half at 8,192, for K = V = C. Fed one token at a time with its state,
it is the recurrence S <- gamma S + k v'.

Without q and k, both are 1, which leaves decay alone.

Shapes: B batch, T position, H heads, K features of a key, V of a value; N chunks of C.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import Attention, LayerCache, Positions
from rope_exp.kernels import wide

# Tokens between two states held in training.
CHUNK = 64
# Queries and keys, [B, T, H, K] each.
Scores = tuple[Tensor, Tensor] | None


def parallel(scores: Scores, v_BTHV: Tensor, log_gamma_H: Tensor) -> Tensor:
    """Return o_BTHV by the whole triangle of weights."""
    weight_HTT = _triangle(v_BTHV.shape[1], log_gamma_H.to(wide(v_BTHV).dtype))
    if scores is None:
        return torch.einsum("hij,bjhv->bihv", weight_HTT, v_BTHV)
    return torch.einsum("bihk,bjhk,hij,bjhv->bihv", *scores, weight_HTT, v_BTHV)


def chunked(
    scores: Scores,
    v_BTHV: Tensor,
    log_gamma_H: Tensor,
    state_BHKV: Tensor | None = None,
    *,
    size: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return o_BTHV, and the state after the last token.

    Args:
        scores: q and k. Products are taken in their dtype, sums over chunks in float32 at least.
        log_gamma_H: log of each head's decay per token; 0: no decay.
        state_BHKV: the state of earlier tokens; None: there are none. K is 1 without scores.
        size: tokens per chunk.
    """
    # Without autocast: q, k and v are already narrow, and sums over chunks must stay wide.
    # The meta device has no autocast of its own.
    device = "cuda" if v_BTHV.is_cuda else "cpu"
    with torch.autocast(device, enabled=False):
        return _chunked(scores, v_BTHV, log_gamma_H.to(wide(v_BTHV).dtype), state_BHKV, size)


def _chunked(
    scores: Scores, v_BTHV: Tensor, log_gamma_H: Tensor, state_BHKV: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    length = v_BTHV.shape[1]
    dtype = v_BTHV.dtype
    size = min(size, length)
    count = math.ceil(length / size)
    place_C = torch.arange(size, device=v_BTHV.device)
    v_BHNCV = _chunks(v_BTHV, size, count)
    one_BHNC1 = torch.ones_like(v_BHNCV[..., :1])
    q_BHNCK, k_BHNCK = one_BHNC1, one_BHNC1

    # Within each chunk, the triangle of weights.
    weight_HNCC = _triangle(size, log_gamma_H)[:, None]
    if scores is not None:
        q_BHNCK, k_BHNCK = (_chunks(x, size, count) for x in scores)
        weight_HNCC = wide(q_BHNCK @ k_BHNCK.mT) * weight_HNCC
    within_BHNCV = weight_HNCC.to(dtype) @ v_BHNCV

    # Each chunk's addition to the state, as of its last token, and the state after each chunk: the
    # addition of chunk m has weight gamma^(C (n - m)) after chunk n.
    to_end_H1C1 = _power(log_gamma_H, size - 1 - place_C)[:, None, :, None].to(dtype)
    added_BHNKV = wide((k_BHNCK * to_end_H1C1).mT @ v_BHNCV)
    after_BHNKV = torch.einsum(
        "hnm,bhmkv->bhnkv", _triangle(count, size * log_gamma_H), added_BHNKV
    )
    before_BHNKV = F.pad(after_BHNKV[:, :, :-1], (0, 0, 0, 0, 1, 0))
    if state_BHKV is not None:
        chunk_N = torch.arange(count, device=v_BTHV.device)
        since_HN11 = _power(log_gamma_H, size * chunk_N)[:, :, None, None]
        before_BHNKV = before_BHNKV + since_HN11 * state_BHKV[:, :, None]

    from_start_H1C1 = _power(log_gamma_H, place_C + 1)[:, None, :, None].to(dtype)
    across_BHNCV = (q_BHNCK * from_start_H1C1) @ before_BHNKV.to(dtype)
    o_BHTV = (within_BHNCV + across_BHNCV).flatten(2, 3)[:, :, :length]

    # The last chunk may be short; the final state is the one after its last token.
    num_last = length - size * (count - 1)
    last_HC1 = _power(log_gamma_H, num_last - 1 - place_C[:num_last])[..., None].to(dtype)
    k_last, v_last = (x[:, :, -1, :num_last] for x in (k_BHNCK, v_BHNCV))
    kept_H11 = (num_last * log_gamma_H).exp()[:, None, None]
    final_BHKV = kept_H11 * before_BHNKV[:, :, -1] + wide((k_last * last_HC1).mT @ v_last)
    return o_BHTV.transpose(1, 2), final_BHKV


def _chunks(x_BTHK: Tensor, size: int, count: int) -> Tensor:
    """Return [B, H, N, C, K], zero-padded after the last token."""
    x_BHTK = x_BTHK.transpose(1, 2)
    padded = F.pad(x_BHTK, (0, 0, 0, size * count - x_BHTK.shape[2]))
    return torch.unflatten(padded, 2, (count, size))


def _triangle(length: int, log_gamma_H: Tensor) -> Tensor:
    """Return gamma^(i - j) for j <= i, otherwise 0; [H, T, T]."""
    place_T = torch.arange(length, device=log_gamma_H.device)
    steps_TT = place_T[:, None] - place_T
    # Clamp before the exponential, which would be infinite outside the triangle.
    power_HTT = (log_gamma_H[:, None, None] * steps_TT.clamp(min=0)).exp()
    return torch.where(steps_TT >= 0, power_HTT, 0.0)


def _power(log_gamma_H: Tensor, steps_N: Tensor) -> Tensor:
    """Return gamma^steps, [H, N]."""
    return (log_gamma_H[:, None] * steps_N).exp()


def for_queries(x_BTGK: Tensor, num_heads: int) -> Tensor:
    """Repeat each of G heads for the query heads that it serves, in order."""
    num_shared = num_heads // x_BTGK.shape[2]
    return x_BTGK if num_shared == 1 else x_BTGK.repeat_interleave(num_shared, dim=2)


# Terms of the sums over the past, by the name of their state: queries and keys, and values.
Sums = Mapping[str, tuple[Scores, Tensor]]


class StateAttention(Attention):
    """Attention by sums over the past; a kind defines the sums and its outputs from them.

    Attributes:
        chunk_size: tokens per chunk of the sums.
        num_copies: the number of neighbouring heads with the same state; the cache keeps one.
    """

    chunk_size = CHUNK
    num_copies = 1

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        is_real_BT11 = None if cache is None else cache.is_real(x_BTD.shape[1])
        found = {}
        states = {}
        for name, (scores, v_BTHV) in self.sums(x_BTD, at).items():
            if is_real_BT11 is not None:
                # Padding adds nothing to the sums.
                v_BTHV = v_BTHV * is_real_BT11
            earlier = None if cache is None else cache.states.get(name)
            if earlier is not None:
                earlier = earlier.repeat_interleave(self.num_copies, dim=1)
            found[name], state_BHKV = chunked(
                scores, v_BTHV, self.log_gamma(), earlier, size=self.chunk_size
            )
            states[name] = state_BHKV[:, :: self.num_copies]
        if cache is not None:
            cache.replace(x_BTD.shape[1], states)
        return self.outputs(found, at)

    def forms(self, x_BTD: Tensor, at: Positions) -> Mapping[str, Tensor]:
        log_gamma_H = self.log_gamma()
        sums = self.sums(x_BTD, at)
        found = {name: parallel(*sum_, log_gamma_H) for name, sum_ in sums.items()}
        return {"parallel": self.outputs(found, at)}

    def sums(self, x_BTD: Tensor, at: Positions) -> Sums:
        """Return the terms to sum over the past, rotated at the sites that rotate."""
        raise NotImplementedError

    def log_gamma(self) -> Tensor:
        """Return the log of each head's decay per token, [H]; by default a buffer of this name."""
        return self.get_buffer("log_gamma_H")

    def outputs(self, found: Mapping[str, Tensor], at: Positions) -> Tensor:
        """Return o_BTHV from the sums, rotated back if O rotates."""
        raise NotImplementedError
