"""Causal softmax attention. Device and length decide which kernel computes it, to one result.

On a GPU, and on a CPU for long sequences, torch's fused kernel. At the lengths that a CPU trains,
that kernel is two to three times slower than plain products of matrices around one pass over the
scores (docs/performance.md): those are written out below, with the gradient, for blocks of queries
that meet no key past their own last position.

Shapes: B batch, T position, H query heads, G key/value heads, K head dimension; N = B * H;
C queries of a block, which meet E keys.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rope_exp.config.costs import MAX_WRITTEN_OUT

MIN_BLOCK = 128  # queries


def causal_attention(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor) -> Tensor:
    """Return o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j, in the inputs' dtype.

    The softmax is taken in float32 at least. Each of the G heads of keys and values serves H/G
    query heads, in order.
    """
    num_shared = q_BTHK.shape[2] // k_BTGK.shape[2]

    if q_BTHK.device.type != "cpu" or q_BTHK.shape[1] > MAX_WRITTEN_OUT:
        o_BHTK = F.scaled_dot_product_attention(
            q_BTHK.transpose(1, 2),
            k_BTGK.transpose(1, 2),
            v_BTGK.transpose(1, 2),
            is_causal=True,
            enable_gqa=num_shared > 1,
        )
        return o_BHTK.transpose(1, 2)

    if num_shared > 1:
        k_BTGK = k_BTGK.repeat_interleave(num_shared, dim=2)
        v_BTGK = v_BTGK.repeat_interleave(num_shared, dim=2)
    o_NTK = _Short.apply(  # type: ignore[no-untyped-call]
        _heads_first(q_BTHK), _heads_first(k_BTGK), _heads_first(v_BTGK)
    )
    return o_NTK.view(-1, q_BTHK.shape[2], *o_NTK.shape[1:]).transpose(1, 2)


class _Short(torch.autograd.Function):
    """Attention written out, with its gradient.

    With w = exp(s - max s), l = sum w and p = w / l: o = (w v) / l, and with g = do / l,

        dv = w^T g,  dw = g v^T,  ds = w (dw - g . o),  dq = ds k / sqrt(K),  dk = ds^T q / sqrt(K):

    the weights are never divided, and one pass makes ds. Kept for the gradient: w in the inputs'
    dtype, and l.
    """

    @staticmethod
    def forward(ctx: Any, q_NTK: Tensor, k_NTK: Tensor, v_NTK: Tensor) -> Tensor:
        scale = 1 / math.sqrt(q_NTK.shape[2])

        outputs = []
        weights = []
        sums = []
        for start, end in _blocks(q_NTK.shape[1]):
            s_NCE = wide(q_NTK[:, start:end] @ k_NTK[:, :end].mT) * scale

            # As wide as the scores: the mask then vectorises.
            position_E = torch.arange(end, dtype=torch.int32)
            s_NCE = torch.where(position_E > position_E[start:, None], -math.inf, s_NCE)

            w_NCE = (s_NCE - s_NCE.amax(-1, keepdim=True)).exp().to(q_NTK.dtype)
            sum_NC1 = wide(w_NCE).sum(-1, keepdim=True)
            o_NCK = (wide(w_NCE @ v_NTK[:, :end]) / sum_NC1).to(q_NTK.dtype)

            weights.append(w_NCE)
            sums.append(sum_NC1)
            outputs.append(o_NCK)

        o_NTK = torch.cat(outputs, dim=1)
        ctx.save_for_backward(q_NTK, k_NTK, v_NTK, o_NTK, *weights, *sums)
        return o_NTK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (do_NTK,) = gradients
        q_NTK, k_NTK, v_NTK, o_NTK, *kept = ctx.saved_tensors
        dtype = q_NTK.dtype
        scale = 1 / math.sqrt(q_NTK.shape[2])

        blocks = _blocks(q_NTK.shape[1])
        weights = kept[: len(blocks)]
        sums = kept[len(blocks) :]

        dq = []
        dk_NTK = torch.zeros_like(wide(k_NTK))
        dv_NTK = torch.zeros_like(wide(v_NTK))
        for (start, end), w_NCE, sum_NC1 in zip(blocks, weights, sums, strict=True):
            g_NCK = wide(do_NTK[:, start:end]) / sum_NC1
            g_dot_o_NC1 = (g_NCK * wide(o_NTK[:, start:end])).sum(-1, keepdim=True)
            g_NCK = g_NCK.to(dtype)

            dw_NCE = wide(g_NCK @ v_NTK[:, :end].mT)
            ds_NCE = (wide(w_NCE) * (dw_NCE - g_dot_o_NC1) * scale).to(dtype)

            dq.append(ds_NCE @ k_NTK[:, :end])
            dk_NTK[:, :end] += ds_NCE.mT @ q_NTK[:, start:end]
            dv_NTK[:, :end] += w_NCE.mT @ g_NCK

        return torch.cat(dq, dim=1), dk_NTK.to(dtype), dv_NTK.to(dtype)


def _blocks(length: int) -> list[tuple[int, int]]:
    """Return the first query of each block, and the end of its queries and of the keys they meet.

    Four blocks at the most: more would save less in products than they cost in calls.
    """
    block = max(math.ceil(length / 4), MIN_BLOCK)
    return [(start, min(start + block, length)) for start in range(0, length, block)]


def _heads_first(x_BTHK: Tensor) -> Tensor:
    """Return [N, T, K]: what a batched product of matrices takes."""
    return x_BTHK.transpose(1, 2).flatten(0, 1)


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least, as fused kernels accumulate."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
