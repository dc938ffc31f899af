"""Sums over the past with weights that decay: o_i = sum over j <= i of gamma^(i-j) (q_i' k_j) v_j.

`parallel` holds T x T weights. `chunked` holds weights within chunks of C tokens, and between
chunks the state S = sum_j gamma^(..) k_j v_j'. Its time grows linearly with T, except for the sums
of states over chunks: (T/C)^2 K V operations, a half of the rest at T = 8,192, for K = V = C. Fed
one token at a time, it is the recurrence S <- gamma S + k v'. Without q and k, both are 1.

Shapes: B batch, T position, H heads, K features of a key, V of a value; N chunks of C.
"""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import Attention, LayerCache, Positions, at_least_float32, for_queries

CHUNK = 64  # tokens between two states held in training
Scores = tuple[Tensor, Tensor] | None  # queries and keys, [B, T, H, K] each
Terms = tuple[Scores, Tensor]  # queries and keys, and values, of a sum over the past


def parallel(scores: Scores, v_BTGV: Tensor, log_gamma_H: Tensor) -> Tensor:
    """Return o_BTHV by the whole triangle of weights.

    Args:
        scores: queries and keys; None: both are 1.
        v_BTGV: values, which G heads share.
        log_gamma_H: the log of each head's decay per token; 0: no decay.
    """
    v_BTHV = for_queries(v_BTGV, len(log_gamma_H))
    weight_HTT = _triangle(v_BTHV.shape[1], log_gamma_H.to(at_least_float32(v_BTHV).dtype))
    if scores is None:
        return torch.einsum("hij,bjhv->bihv", weight_HTT, v_BTHV)
    k_BTHK = for_queries(scores[1], len(log_gamma_H))
    return torch.einsum("bihk,bjhk,hij,bjhv->bihv", scores[0], k_BTHK, weight_HTT, v_BTHV)


# Without autocast: q, k and v are already narrow, and sums over chunks must stay wide.
@torch.autocast("cuda", enabled=False)
@torch.autocast("cpu", enabled=False)
def chunked(
    scores: Scores,
    v_BTGV: Tensor,
    log_gamma_H: Tensor,
    state_BHKV: Tensor | None = None,
    *,
    size: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return o_BTHV and the state after the last token.

    Products are taken in the dtype of q, k and v, sums over chunks in float32 at least.

    Args:
        scores: queries and keys; None: both are 1, and K of the states is 1.
        v_BTGV: values, which G heads share.
        log_gamma_H: the log of each head's decay per token; 0: no decay.
        state_BHKV: the state after the token before these; None: there is none.
        size: C, the tokens of a chunk.
    """
    length = v_BTGV.shape[1]
    dtype = v_BTGV.dtype
    log_gamma_H = log_gamma_H.to(at_least_float32(v_BTGV).dtype)
    size = min(size, length)
    count = math.ceil(length / size)

    place_C = torch.arange(size, device=v_BTGV.device)
    v_BHNCV = _chunks(v_BTGV, len(log_gamma_H), size)
    q_BHNCK = torch.ones_like(v_BHNCV[..., :1])
    k_BHNCK = q_BHNCK

    # Within each chunk, the triangle of weights.
    weight_HNCC = _triangle(size, log_gamma_H)[:, None]
    if scores is not None:
        q_BHNCK = _chunks(scores[0], len(log_gamma_H), size)
        k_BHNCK = _chunks(scores[1], len(log_gamma_H), size)
        weight_HNCC = at_least_float32(q_BHNCK @ k_BHNCK.mT) * weight_HNCC
    within_BHNCV = weight_HNCC.to(dtype) @ v_BHNCV

    # Each chunk's addition to the state, as of its last token, and the state after each chunk: the
    # addition of chunk m has weight gamma^(C (n - m)) after chunk n.
    to_end_H1C1 = _power(log_gamma_H, size - 1 - place_C)[:, None, :, None].to(dtype)
    added_BHNKV = at_least_float32((k_BHNCK * to_end_H1C1).mT @ v_BHNCV)
    weight_HNN = _triangle(count, size * log_gamma_H)
    after_BHNKV = torch.einsum("hnm,bhmkv->bhnkv", weight_HNN, added_BHNKV)
    before_BHNKV = F.pad(after_BHNKV[:, :, :-1], (0, 0, 0, 0, 1, 0))
    if state_BHKV is not None:
        chunk_N = torch.arange(count, device=v_BTGV.device)
        since_HN11 = _power(log_gamma_H, size * chunk_N)[:, :, None, None]
        before_BHNKV = before_BHNKV + since_HN11 * state_BHKV[:, :, None]

    from_start_H1C1 = _power(log_gamma_H, place_C + 1)[:, None, :, None].to(dtype)
    across_BHNCV = (q_BHNCK * from_start_H1C1) @ before_BHNKV.to(dtype)
    o_BHTV = (within_BHNCV + across_BHNCV).flatten(2, 3)[:, :, :length]

    # The last chunk may be short.
    num_last = length - size * (count - 1)
    k_BHCK = k_BHNCK[:, :, -1, :num_last]
    v_BHCV = v_BHNCV[:, :, -1, :num_last]
    final_BHKV = _state_after(before_BHNKV[:, :, -1], k_BHCK, v_BHCV, log_gamma_H)
    return o_BHTV.transpose(1, 2), final_BHKV


def _state_after(
    before_BHKV: Tensor, k_BHCK: Tensor, v_BHCV: Tensor, log_gamma_H: Tensor
) -> Tensor:
    """Return the state after a chunk's last token from the state before its first."""
    length = k_BHCK.shape[2]
    place_C = torch.arange(length, device=k_BHCK.device)
    to_end_HC1 = _power(log_gamma_H, length - 1 - place_C)[..., None].to(v_BHCV.dtype)
    added_BHKV = at_least_float32((k_BHCK * to_end_HC1).mT @ v_BHCV)
    kept_H11 = (length * log_gamma_H).exp()[:, None, None]
    return kept_H11 * before_BHKV + added_BHKV


def _chunks(x_BTGK: Tensor, num_heads: int, size: int) -> Tensor:
    """Return [B, H, N, C, K] of so many heads, zero-padded after the last token."""
    x_BHTK = for_queries(x_BTGK, num_heads).transpose(1, 2)
    padded = F.pad(x_BHTK, (0, 0, 0, -x_BHTK.shape[2] % size))
    return torch.unflatten(padded, 2, (-1, size))


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


class StateAttention(Attention):
    """Attention by sums over the past; a kind defines the sums and its outputs from them."""

    # Training holds a state after so many tokens.
    chunk_size = CHUNK
    # The number of neighbouring heads with the same state; the cache keeps one.
    num_copies = 1

    def heads(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None) -> Tensor:
        cache = cache or LayerCache()
        results = []
        for number, terms in enumerate(self.sums(x_BTD, positions)):
            name = f"state{number}"
            earlier = cache.states.get(name)
            if earlier is not None:
                earlier = earlier.repeat_interleave(self.num_copies, dim=1)
            o_BTHV, state_BHKV = chunked(*terms, self.log_gamma(), earlier, size=self.chunk_size)
            results.append(o_BTHV)
            cache.states[name] = state_BHKV[:, :: self.num_copies].detach()
        cache.num_seen += x_BTD.shape[1]
        return self.outputs(results, positions)

    def forms(self, x_BTD: Tensor, positions: Positions) -> Mapping[str, Tensor]:
        log_gamma_H = self.log_gamma()
        results = [parallel(*terms, log_gamma_H) for terms in self.sums(x_BTD, positions)]
        return {"parallel": self.outputs(results, positions)}

    def sums(self, x_BTD: Tensor, positions: Positions) -> Sequence[Terms]:
        """Return the terms of each sum over the past, rotated at the sites that rotate."""
        raise NotImplementedError

    def log_gamma(self) -> Tensor:
        """Return the log of each head's decay per token, [H]; 0: no decay."""
        return self.o_proj.weight.new_zeros(self.num_heads)

    def outputs(self, results: Sequence[Tensor], positions: Positions) -> Tensor:
        """Return o_BTHV from the sums, rotated back if O rotates."""
        raise NotImplementedError
