"""Materialised softmax attention on a CPU, with its gradient.

Torch's own kernel for CPUs takes two to three times as long.

The weights here are those of the softmax, as a whole matrix in memory.

Shapes: B batch, T position, H heads, K features of a key, V of a value, C queries of a block, E
keys that they attend to.
"""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Longest sequence: the softmax's weights are kept for the gradient, so memory grows with the square
# of it.
MAX_LENGTH = 2048
MIN_BLOCK = 128  # queries
# The places of bias_HTT and sink_H among the arguments of `_Materialised.forward` after ctx.
_BIAS = 3
_SINK = 7


def materialised_attention(
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    bias_HTT: Tensor | None,
    mask: Tensor | None,
    window: int | None,
    causal: bool,
    sink_H: Tensor | None,
) -> Tensor:
    """Return o_BTHV, in the inputs' dtype; the softmax is taken in float32 at least.

    Args:
        q_BTHK: queries.
        k_BTHK: keys, already repeated for each query head.
        v_BTHV: values, also repeated.
        bias_HTT: added to the scores; or [B, H, T, T]. None: nothing.
        mask: True where a query attends to a key, [T, T] or [B, 1, T, T]; None: everywhere.
        window: that of `mask`, so that keys outside it are not read at all; None: there is none.
        causal: whether `mask` excludes later keys, which are then not read either.
        sink_H: one more score in each softmax, whose value is 0; None: there is none.
    """
    heads_first = [x.transpose(1, 2).contiguous() for x in (q_BTHK, k_BTHK, v_BTHV)]
    o_BHTV = _Materialised.apply(  # type: ignore[no-untyped-call]
        *heads_first, bias_HTT, mask, window, causal, sink_H
    )
    return o_BHTV.transpose(1, 2)


def keep_freed_memory() -> None:
    """Let glibc, if that is the C library, keep memory that a step frees for the next step.

    Otherwise it returns every tensor above a threshold of at most 32 MiB to the system, which
    zeroes each page again at its next use: a sixth of a step (docs/decisions.md).
    """
    library = ctypes.CDLL(None)
    mmap_threshold, trim_threshold = -3, -1  # of malloc.h
    if not hasattr(library, "mallopt"):
        return

    # Versions before 2.35 accept no threshold above 32 MiB. Setting the trim threshold alone would
    # fix this one at 128 KiB.
    if any(library.mallopt(mmap_threshold, most) for most in (2**31 - 1, 2**25)):
        library.mallopt(trim_threshold, 2**31 - 1)


class _Materialised(torch.autograd.Function):
    """Materialised softmax attention with its gradient.

    With w = exp(s - max s), l = sum w and p = w / l: o = (w v) / l, and with g = do / l,

        dv = w^T g,  dw = g v^T,  ds = w (dw - g . o),  dq = ds k / sqrt(K),  dk = ds^T q / sqrt(K):

    the softmax's weights are never divided, and one pass computes ds, which is the gradient of a
    bias, summed over the batch unless the bias has a batch axis. A sink s adds exp(s - max) to l;
    it has no value, so ds = -exp(s - max) g . o. Saved for the gradient: w in the inputs' dtype,
    and l.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHTK: Tensor,
        k_BHTK: Tensor,
        v_BHTV: Tensor,
        bias_HTT: Tensor | None,
        mask: Tensor | None,
        window: int | None,
        causal: bool,
        sink_H: Tensor | None,
    ) -> Tensor:
        dtype = q_BHTK.dtype
        wide = torch.promote_types(dtype, torch.float32)
        scale = 1 / math.sqrt(q_BHTK.shape[3])
        # Each block's queries, and the keys that they attend to. At most four blocks: more would
        # save less in products than they cost in calls.
        length = q_BHTK.shape[2]
        size = max(math.ceil(length / 4), MIN_BLOCK)
        reach = length if window is None else window - 1
        blocks = []
        for start in range(0, length, size):
            end = min(start + size, length)
            keys = slice(max(start - reach, 0), end) if causal else slice(0, length)
            blocks.append((slice(start, end), keys))

        outputs = []
        kept = []
        for queries, keys in blocks:
            s_BHCE = (q_BHTK[:, :, queries] @ k_BHTK[:, :, keys].mT).to(wide) * scale
            if bias_HTT is not None:
                s_BHCE = s_BHCE + bias_HTT[..., queries, keys]
            if mask is not None:
                s_BHCE = torch.where(mask[..., queries, keys], s_BHCE, -math.inf)

            max_BHC1 = s_BHCE.amax(-1, keepdim=True)
            sink_BHC1 = None
            if sink_H is not None:
                sink_H11 = sink_H.to(wide)[:, None, None]
                max_BHC1 = torch.maximum(max_BHC1, sink_H11)
                sink_BHC1 = (sink_H11 - max_BHC1).exp()
            w_BHCE = (s_BHCE - max_BHC1).exp().to(dtype)
            sum_BHC1 = w_BHCE.to(wide).sum(-1, keepdim=True)
            if sink_BHC1 is not None:
                sum_BHC1 = sum_BHC1 + sink_BHC1

            o_BHCV = (w_BHCE @ v_BHTV[:, :, keys]).to(wide) / sum_BHC1
            outputs.append(o_BHCV.to(dtype))
            kept += [w_BHCE, sum_BHC1, sink_BHC1]

        ctx.blocks = blocks
        o_BHTV = torch.cat(outputs, dim=2)
        ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTV, o_BHTV, bias_HTT, *kept)
        return o_BHTV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        do_BHTV = gradients[0].contiguous()
        q_BHTK, k_BHTK, v_BHTV, o_BHTV, bias_HTT, *kept = ctx.saved_tensors
        dtype = q_BHTK.dtype
        wide = torch.promote_types(dtype, torch.float32)
        scale = 1 / math.sqrt(q_BHTK.shape[3])

        dq = []
        dk_BHTK = torch.zeros_like(k_BHTK, dtype=wide)
        dv_BHTV = torch.zeros_like(v_BHTV, dtype=wide)
        dbias_HTT = None
        if ctx.needs_input_grad[_BIAS]:
            dbias_HTT = torch.zeros(bias_HTT.shape, dtype=wide)
        dsink_BH = do_BHTV.new_zeros(do_BHTV.shape[:2], dtype=wide)
        blocks = zip(ctx.blocks, kept[::3], kept[1::3], kept[2::3], strict=True)
        for (queries, keys), w_BHCE, sum_BHC1, sink_BHC1 in blocks:
            g_BHCV = do_BHTV[:, :, queries].to(wide) / sum_BHC1
            g_dot_o_BHC1 = (g_BHCV * o_BHTV[:, :, queries].to(wide)).sum(-1, keepdim=True)
            g_BHCV = g_BHCV.to(dtype)

            if sink_BHC1 is not None:
                dsink_BH = dsink_BH - (sink_BHC1 * g_dot_o_BHC1).sum((2, 3))

            dw_BHCE = (g_BHCV @ v_BHTV[:, :, keys].mT).to(wide)
            ds_BHCE = w_BHCE.to(wide) * (dw_BHCE - g_dot_o_BHC1)
            if dbias_HTT is not None:
                dbias_HTT[..., queries, keys] = ds_BHCE if dbias_HTT.ndim == 4 else ds_BHCE.sum(0)
            ds_BHCE = (ds_BHCE * scale).to(dtype)

            dq.append(ds_BHCE @ k_BHTK[:, :, keys])
            dk_BHTK[:, :, keys] += ds_BHCE.mT @ q_BHTK[:, :, queries]
            dv_BHTV[:, :, keys] += w_BHCE.mT @ g_BHCV

        dqkv = (torch.cat(dq, dim=2), dk_BHTK.to(dtype), dv_BHTV.to(dtype))
        dsink_H = dsink_BH.sum(0) if ctx.needs_input_grad[_SINK] else None
        return *dqkv, dbias_HTT, None, None, None, dsink_H
