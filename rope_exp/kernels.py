"""Two kernels of softmax attention: of whole sequences, and of new queries after a cache.

Whole sequences take torch's fused kernel, or on a CPU weights that are written out, with their
gradient. A sink is one more score in each softmax, whose value is 0.

Shapes: B batch, T queries, E keys, H query heads, G key/value heads, K features of a key, V of a
value; C queries of a block.
"""

import math
from collections.abc import Sequence
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
    k_BTGK: Tensor,
    v_BTGV: Tensor,
    *,
    window: int | None = None,
    causal: bool = True,
    bias_HTE: Tensor | None = None,
    document_BT: Tensor | None = None,
    sink_H: Tensor | None = None,
) -> Tensor:
    """Return o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j, in the inputs' dtype.

    The softmax is taken in float32 at least. Each of the G heads of keys and values serves H/G
    query heads, in order.

    Args:
        window: the number of keys that a query attends to, its own being the last; None: all.
        causal: the sum is over j <= i; otherwise over all j, without a window.
        bias_HTE: added to the scores; it may have a gradient, and a batch: [B, H, T, T].
        document_BT: a query attends only to keys of the same number; None: to all.
    """
    assert causal or window is None
    length = q_BTHK.shape[1]
    window = None if window is None or window >= length else window

    # Which keys each query attends to, [T, T] or [B, 1, T, T]; None: all.
    is_met = None
    is_written_out = q_BTHK.device.type == "cpu" and length <= MAX_WRITTEN_OUT
    is_masked = any(x is not None for x in (window, bias_HTE, document_BT, sink_H))
    if causal and (is_masked or is_written_out):
        is_met = meets(length, length, window, q_BTHK.device)
    if document_BT is not None:
        is_same = (document_BT[:, :, None] == document_BT[:, None, :])[:, None]
        is_met = is_same if is_met is None else is_met & is_same

    if not is_written_out:
        return _fused(q_BTHK, k_BTGK, v_BTGV, is_met, bias_HTE, sink_H, causal)

    num_shared = q_BTHK.shape[2] // k_BTGK.shape[2]
    if num_shared > 1:
        k_BTGK = k_BTGK.repeat_interleave(num_shared, dim=2)
        v_BTGV = v_BTGV.repeat_interleave(num_shared, dim=2)
    heads_first = [x.transpose(1, 2).contiguous() for x in (q_BTHK, k_BTGK, v_BTGV)]
    o_BHTV: Tensor = _Short.apply(*heads_first, bias_HTE, is_met, window, causal, sink_H)  # type: ignore[no-untyped-call]
    return o_BHTV.transpose(1, 2)


def _fused(
    q_BTHK: Tensor,
    k_BTGK: Tensor,
    v_BTGV: Tensor,
    mask: Tensor | None,
    bias_HTT: Tensor | None,
    sink_H: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return the same by torch's kernel.

    Its fast forms need queries, keys and values of one width, so narrower ones are padded with
    zeros. With grouped heads they support neither a mask nor a width past `MAX_FLASH`; on a CPU,
    grouped heads take up to twice as long as repeated heads.
    """
    length, num_heads, key_dim = q_BTHK.shape[1:]
    out_dim = v_BTGV.shape[3]
    if bias_HTT is not None or sink_H is not None:
        added = q_BTHK.new_zeros(()) if bias_HTT is None else bias_HTT.to(q_BTHK.dtype)
        mask = added if mask is None else torch.where(mask, added, -math.inf)
    if sink_H is not None and mask is not None:
        # The sink is a last column of the mask, with a key and a value of 0.
        mask = mask.expand(*mask.shape[:-3], num_heads, length, length)
        column = sink_H.to(mask.dtype)[:, None, None].expand(*mask.shape[:-1], 1)
        mask = torch.cat([mask, column], dim=-1)
        k_BTGK, v_BTGV = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k_BTGK, v_BTGV))

    if key_dim != out_dim:
        widest = max(key_dim, out_dim)
        q_BTHK = F.pad(q_BTHK, (0, widest - key_dim))
        k_BTGK = F.pad(k_BTGK, (0, widest - key_dim))
        v_BTGV = F.pad(v_BTGV, (0, widest - out_dim))

    num_shared = num_heads // k_BTGK.shape[2]
    is_plain = mask is None and q_BTHK.shape[3] <= MAX_FLASH
    repeats = num_shared > 1 and not (is_plain and q_BTHK.device.type != "cpu")
    if repeats:
        k_BTGK = k_BTGK.repeat_interleave(num_shared, dim=2)
        v_BTGV = v_BTGV.repeat_interleave(num_shared, dim=2)

    o_BHTV = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BTGK.transpose(1, 2),
        v_BTGV.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal and mask is None,
        scale=key_dim**-0.5,
        enable_gqa=num_shared > 1 and not repeats,
    )
    return o_BHTV[..., :out_dim].transpose(1, 2)


def attention_after(
    q_BTHK: Tensor,
    k_BEGK: Tensor,
    values: Sequence[Tensor],
    *,
    scale: float | None = None,
    window: int | None = None,
    num_pads_B: Tensor | None = None,
    bias_HTE: Tensor | None = None,
    sink_H: Tensor | None = None,
) -> Tensor:
    """Return o_BTHV of queries at the last T of E positions, as decoding needs it.

    Args:
        values: [B, E, G, ...] each; the output concatenates their features.
        scale: factor on the scores; None: 1/sqrt(K).
        num_pads_B: the number of a row's first keys that are padding; None: none.
        bias_HTE: as for `attention`; it may cover more keys, of which these are the last.
    """
    num_keys, num_groups = k_BEGK.shape[1:3]
    scale = scale or q_BTHK.shape[-1] ** -0.5
    meets_1TE = meets(q_BTHK.shape[1], num_keys, window, q_BTHK.device)[None]
    if num_pads_B is not None:
        key_E = torch.arange(num_keys, device=q_BTHK.device)
        meets_1TE = meets_1TE & (key_E >= num_pads_B[:, None, None])

    q_BTGSK = torch.unflatten(q_BTHK, 2, (num_groups, -1))
    score_BGSTE = wide(torch.einsum("btgsk,begk->bgste", q_BTGSK, k_BEGK)) * scale
    if bias_HTE is not None:
        bias_GSTE = torch.unflatten(bias_HTE[..., -num_keys:], -3, (num_groups, -1))
        score_BGSTE = score_BGSTE + bias_GSTE
    score_BGSTE = score_BGSTE.masked_fill(~meets_1TE[:, None, None], -math.inf)
    if sink_H is not None:
        sink_GS11 = torch.unflatten(sink_H, 0, (num_groups, -1))[..., None, None]
        sink = sink_GS11.to(score_BGSTE.dtype).expand(*score_BGSTE.shape[:-1], 1)
        score_BGSTE = torch.cat([score_BGSTE, sink], dim=-1)
    weight_BGSTE = score_BGSTE.softmax(-1)[..., :num_keys].to(q_BTHK.dtype)
    if num_pads_B is not None:
        # Padding itself attends to nothing: 0, and not 0/0.
        meets_any_1T1 = meets_1TE.any(-1, keepdim=True)
        weight_BGSTE = torch.where(meets_any_1T1[:, None, None], weight_BGSTE, 0.0)

    parts = [torch.einsum("bgste,begv->btgsv", weight_BGSTE, v_BEGV) for v_BEGV in values]
    return torch.cat(parts, dim=-1).flatten(2, 3)


class _Short(torch.autograd.Function):
    """Written-out attention with its gradient.

    With w = exp(s - max s), l = sum w and p = w / l: o = (w v) / l, and with g = do / l,

        dv = w^T g,  dw = g v^T,  ds = w (dw - g . o),  dq = ds k / sqrt(K),  dk = ds^T q / sqrt(K):

    the weights are never divided, and one pass computes ds; its sum over the batch is the gradient
    of a bias. A sink s adds exp(s - max) to l; it has no value, so ds = -exp(s - max) g . o. Saved
    for the gradient: w in the inputs' dtype, and l.
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


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least, as fused kernels accumulate."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
