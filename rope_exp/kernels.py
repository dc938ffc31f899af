"""Softmax attention by torch's fused kernel, or on a CPU by weights that are written out.

A sink is one more score in each softmax, whose value is 0.

Shapes: B batch, T queries, E keys, H query heads, G key/value heads, K features of a key, V of a
value; C queries of a block.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Longest sequence with explicit attention weights, on a CPU: their memory grows with the square
# of the length.
MAX_WRITTEN_OUT = 2048
MIN_BLOCK = 128  # queries
MAX_FLASH = 256  # features of a head


def meets(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether each of the last T queries attends to each key, [T, E]."""
    # int32 is as wide as the scores, so the mask vectorises.
    key_E = torch.arange(num_keys, dtype=torch.int32, device=device)
    query_T1 = key_E[num_keys - num_queries :, None]
    meets_TE = key_E <= query_T1
    return meets_TE if window is None else meets_TE & (key_E > query_T1 - window)


def attention(
    q_BTHK: Tensor,
    k_BEGK: Tensor,
    v_BEGV: Tensor,
    *,
    window: int | None = None,
    causal: bool = True,
    bias_HTE: Tensor | None = None,
    document_BT: Tensor | None = None,
    sink_H: Tensor | None = None,
) -> Tensor:
    """Return o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j, in the inputs' dtype.

    The queries are at the last T of E positions. The softmax is taken in float32 at least. Each of
    the G heads of keys and values serves H/G query heads, in order.

    Args:
        window: the number of keys that a query attends to, its own being the last; None: all.
        causal: the sum is over j <= i; otherwise over all j, without a window.
        bias_HTE: added to the scores; it may have a gradient, a batch, [B, H, T, E], and more keys,
            of which these are the last.
        document_BT: a query attends only to keys of the same number; None: to all.
    """
    assert causal or window is None
    num_queries, num_keys = q_BTHK.shape[1], k_BEGK.shape[1]
    window = None if window is None or window >= num_keys else window
    bias_HTE = None if bias_HTE is None else bias_HTE[..., -num_keys:]

    num_groups = k_BEGK.shape[2]
    added = (window, document_BT, bias_HTE, sink_H)
    if num_queries == 1 and num_groups < q_BTHK.shape[2] and all(x is None for x in added):
        # One query meets every key: the heads that share keys are queries of one head.
        q_BSGK = q_BTHK.reshape(q_BTHK.shape[0], num_groups, -1, q_BTHK.shape[3]).transpose(1, 2)
        o_BSGV = attention(q_BSGK, k_BEGK, v_BEGV, causal=False)
        return o_BSGV.transpose(1, 2).flatten(1, 2)[:, None]

    # Which keys each query attends to, [T, E] or [B, 1, T, T]; None: all.
    is_met = None
    fits = num_queries == num_keys <= MAX_WRITTEN_OUT
    is_written_out = q_BTHK.device.type == "cpu" and fits
    is_masked = any(x is not None for x in (window, bias_HTE, document_BT, sink_H))
    if causal and (is_masked or is_written_out or num_queries < num_keys):
        is_met = meets(num_queries, num_keys, window, q_BTHK.device)
    if document_BT is not None:
        is_same = (document_BT[:, :, None] == document_BT[:, None, :])[:, None]
        is_met = is_same if is_met is None else is_met & is_same

    if not is_written_out:
        return _fused(q_BTHK, k_BEGK, v_BEGV, is_met, bias_HTE, sink_H, causal)

    per_query = (for_queries(x, q_BTHK.shape[2]) for x in (q_BTHK, k_BEGK, v_BEGV))
    heads_first = [x.transpose(1, 2).contiguous() for x in per_query]
    o_BHTV: Tensor = _Short.apply(*heads_first, bias_HTE, is_met, window, causal, sink_H)  # type: ignore[no-untyped-call]
    return o_BHTV.transpose(1, 2)


def _fused(
    q_BTHK: Tensor,
    k_BEGK: Tensor,
    v_BEGV: Tensor,
    mask: Tensor | None,
    bias_HTE: Tensor | None,
    sink_H: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return the same by torch's kernel.

    Its fast forms need queries, keys and values of one width, so narrower ones are padded with
    zeros. With grouped heads they support neither a mask nor a width past `MAX_FLASH`; on a CPU,
    grouped heads take up to twice as long as repeated heads.
    """
    num_queries, num_heads, key_dim = q_BTHK.shape[1:]
    num_keys, num_groups, out_dim = v_BEGV.shape[1:]
    if bias_HTE is not None or sink_H is not None:
        added = q_BTHK.new_zeros(()) if bias_HTE is None else bias_HTE.to(q_BTHK.dtype)
        mask = added if mask is None else torch.where(mask, added, -math.inf)
    if sink_H is not None and mask is not None:
        # The sink is a last column of the mask, with a key and a value of 0.
        mask = mask.expand(*mask.shape[:-3], num_heads, num_queries, num_keys)
        column = sink_H.to(mask.dtype)[:, None, None].expand(*mask.shape[:-1], 1)
        mask = torch.cat([mask, column], dim=-1)
        k_BEGK, v_BEGV = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k_BEGK, v_BEGV))

    if key_dim != out_dim:
        widest = max(key_dim, out_dim)
        q_BTHK = F.pad(q_BTHK, (0, widest - key_dim))
        k_BEGK = F.pad(k_BEGK, (0, widest - key_dim))
        v_BEGV = F.pad(v_BEGV, (0, widest - out_dim))

    is_plain = mask is None and q_BTHK.shape[3] <= MAX_FLASH
    repeats = num_groups < num_heads and not (is_plain and q_BTHK.device.type != "cpu")
    if repeats:
        k_BEGK, v_BEGV = (for_queries(x, num_heads) for x in (k_BEGK, v_BEGV))

    o_BHTV = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BEGK.transpose(1, 2),
        v_BEGV.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=key_dim**-0.5,
        enable_gqa=num_groups < num_heads and not repeats,
    )
    return o_BHTV[..., :out_dim].transpose(1, 2)


class _Short(torch.autograd.Function):
    """Written-out attention with its gradient.

    With w = exp(s - max s), l = sum w and p = w / l: o = (w v) / l, and with g = do / l,

        dv = w^T g,  dw = g v^T,  ds = w (dw - g . o),  dq = ds k / sqrt(K),  dk = ds^T q / sqrt(K):

    the weights are never divided, and one pass computes ds, which is the gradient of a bias, summed
    over the batch unless the bias has one. A sink s adds exp(s - max) to l; it has no value, so
    ds = -exp(s - max) g . o. Saved for the gradient: w in the inputs' dtype, and l.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHTK: Tensor,
        k_BHTK: Tensor,
        v_BHTV: Tensor,
        bias_HTT: Tensor | None,
        is_met: Tensor | None,
        window: int | None,
        causal: bool,
        sink_H: Tensor | None,
    ) -> Tensor:
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
            s_BHCE = wide(q_BHTK[:, :, queries] @ k_BHTK[:, :, keys].mT) * scale
            if bias_HTT is not None:
                s_BHCE = s_BHCE + bias_HTT[..., queries, keys]
            if is_met is not None:
                s_BHCE = torch.where(is_met[..., queries, keys], s_BHCE, -math.inf)

            max_BHC1 = s_BHCE.amax(-1, keepdim=True)
            sink_BHC1 = None
            if sink_H is not None:
                sink_H11 = sink_H.to(s_BHCE.dtype)[:, None, None]
                max_BHC1 = torch.maximum(max_BHC1, sink_H11)
                sink_BHC1 = (sink_H11 - max_BHC1).exp()
            w_BHCE = (s_BHCE - max_BHC1).exp().to(q_BHTK.dtype)
            sum_BHC1 = wide(w_BHCE).sum(-1, keepdim=True)
            if sink_BHC1 is not None:
                sum_BHC1 = sum_BHC1 + sink_BHC1

            outputs.append((wide(w_BHCE @ v_BHTV[:, :, keys]) / sum_BHC1).to(q_BHTK.dtype))
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
        scale = 1 / math.sqrt(q_BHTK.shape[3])

        dq = []
        dk_BHTK = torch.zeros_like(wide(k_BHTK))
        dv_BHTV = torch.zeros_like(wide(v_BHTV))
        dbias_HTT = None
        if ctx.needs_input_grad[3]:
            dbias_HTT = torch.zeros(bias_HTT.shape, dtype=dk_BHTK.dtype)
        dsink_BH = do_BHTV.new_zeros(do_BHTV.shape[:2], dtype=dk_BHTK.dtype)
        blocks = zip(ctx.blocks, kept[::3], kept[1::3], kept[2::3], strict=True)
        for (queries, keys), w_BHCE, sum_BHC1, sink_BHC1 in blocks:
            g_BHCV = wide(do_BHTV[:, :, queries]) / sum_BHC1
            g_dot_o_BHC1 = (g_BHCV * wide(o_BHTV[:, :, queries])).sum(-1, keepdim=True)
            g_BHCV = g_BHCV.to(dtype)

            if sink_BHC1 is not None:
                dsink_BH = dsink_BH - (sink_BHC1 * g_dot_o_BHC1).sum((2, 3))

            dw_BHCE = wide(g_BHCV @ v_BHTV[:, :, keys].mT)
            ds_BHCE = wide(w_BHCE) * (dw_BHCE - g_dot_o_BHC1)
            if dbias_HTT is not None:
                dbias_HTT[..., queries, keys] = ds_BHCE if dbias_HTT.ndim == 4 else ds_BHCE.sum(0)
            ds_BHCE = (ds_BHCE * scale).to(dtype)

            dq.append(ds_BHCE @ k_BHTK[:, :, keys])
            dk_BHTK[:, :, keys] += ds_BHCE.mT @ q_BHTK[:, :, queries]
            dv_BHTV[:, :, keys] += w_BHCE.mT @ g_BHCV

        dqkv = (torch.cat(dq, dim=2), dk_BHTK.to(dtype), dv_BHTV.to(dtype))
        dsink_H = dsink_BH.sum(0) if ctx.needs_input_grad[7] else None
        return *dqkv, dbias_HTT, None, None, None, dsink_H


def for_queries(x_BTGK: Tensor, num_heads: int) -> Tensor:
    """Repeat each key/value head for the query heads that it serves, in order."""
    num_shared = num_heads // x_BTGK.shape[2]
    return x_BTGK if num_shared == 1 else x_BTGK.repeat_interleave(num_shared, dim=2)


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least, as fused kernels accumulate."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
