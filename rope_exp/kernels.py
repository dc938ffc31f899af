"""Two kernels of softmax attention: of whole sequences, and of new queries after a cache.

Whole sequences take torch's fused kernel, or on a CPU weights that are written out, with their
gradient.

Shapes: B batch, T queries, E keys, H query heads, G key/value heads, K features of a key, V of a
value; N = B H rows of matrix products, C queries of a block.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

# Longest sequence with explicit attention weights, on a CPU: their memory grows with the square
# of the length.
MAX_WRITTEN_OUT = 2048
MIN_BLOCK = 128  # queries
MAX_FLASH = 256  # features of a head


def of_one_document(document_BT: Tensor) -> Tensor:
    """Return whether two tokens of a row belong to one document, [B, T, T]."""
    return document_BT[:, :, None] == document_BT[:, None, :]


def meets(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether each of the last T queries attends to each key, [T, E]."""
    query_T = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    key_E = torch.arange(num_keys, device=device)
    meets_TE = key_E <= query_T
    return meets_TE if window is None else meets_TE & (key_E > query_T - window)


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
        bias_HTE: added to the score of query i and key j; it may have a gradient, and a batch:
            [B, H, T, T].
        document_BT: a query attends only to keys of the same number; None: to all.
        sink_H: one more score in each softmax, whose value is 0; None: none.
    """
    assert causal or window is None
    num_heads = q_BTHK.shape[2]
    num_shared = num_heads // k_BTGK.shape[2]
    length = q_BTHK.shape[1]
    window = None if window is None or window >= length else window

    if q_BTHK.device.type != "cpu" or length > MAX_WRITTEN_OUT:
        mask = _mask(q_BTHK, window, causal, bias_HTE, document_BT, sink_H)
        if sink_H is not None:
            # The key of the mask's last column: 0, like its value.
            k_BTGK, v_BTGV = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k_BTGK, v_BTGV))
        return _fused(q_BTHK, k_BTGK, v_BTGV, mask, causal=causal)

    if num_shared > 1:
        k_BTGK = k_BTGK.repeat_interleave(num_shared, dim=2)
        v_BTGV = v_BTGV.repeat_interleave(num_shared, dim=2)
    o_NTV = _Short.apply(  # type: ignore[no-untyped-call]
        _heads_first(q_BTHK),
        _heads_first(k_BTGK),
        _heads_first(v_BTGV),
        bias_HTE,
        document_BT,
        window,
        causal,
        sink_H,
    )
    return o_NTV.view(-1, num_heads, *o_NTV.shape[1:]).transpose(1, 2)


def _mask(
    q_BTHK: Tensor,
    window: int | None,
    causal: bool,
    bias_HTT: Tensor | None,
    document_BT: Tensor | None,
    sink_H: Tensor | None,
) -> Tensor | None:
    """Return a mask for torch's kernel: added to the scores if it holds numbers, else boolean.

    None: `causal` alone suffices. A sink is one more column.
    """
    if window is None and bias_HTT is None and document_BT is None and sink_H is None:
        return None

    length = q_BTHK.shape[1]
    is_met = torch.ones(length, length, dtype=torch.bool, device=q_BTHK.device)
    if causal:
        is_met = meets(length, length, window, q_BTHK.device)
    if document_BT is not None:
        is_met = is_met & of_one_document(document_BT)[:, None]
    if bias_HTT is None and sink_H is None:
        return is_met

    bias_HTT = q_BTHK.new_zeros(()) if bias_HTT is None else bias_HTT.to(q_BTHK.dtype)
    mask = torch.where(is_met, bias_HTT, -math.inf)
    if sink_H is None:
        return mask
    mask = mask.expand(*mask.shape[:-3], len(sink_H), length, length)
    column = sink_H.to(mask.dtype)[:, None, None].expand(*mask.shape[:-1], 1)
    return torch.cat([mask, column], dim=-1)


def _fused(
    q_BTHK: Tensor, k_BTGK: Tensor, v_BTGV: Tensor, mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Return the same by torch's kernel.

    Its fast forms need queries, keys and values of one width, so narrower ones are padded with
    zeros. With grouped heads they support neither a mask nor a width past `MAX_FLASH`; on a CPU,
    grouped heads take up to twice as long as repeated heads.
    """
    key_dim = q_BTHK.shape[3]
    out_dim = v_BTGV.shape[3]
    if key_dim != out_dim:
        widest = max(key_dim, out_dim)
        q_BTHK = F.pad(q_BTHK, (0, widest - key_dim))
        k_BTGK = F.pad(k_BTGK, (0, widest - key_dim))
        v_BTGV = F.pad(v_BTGV, (0, widest - out_dim))

    num_shared = q_BTHK.shape[2] // k_BTGK.shape[2]
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


class ChosenBackends(TorchFunctionMode):
    """Notes which backend torch chooses for its attention, at each call within the context.

    Attributes:
        names: of torch.nn.attention.SDPBackend in lower case, such as cudnn, flash or math.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            backend = SDPBackend(torch._fused_sdp_choice(*args, **kwargs))
            self.names.add(backend.name.lower().removesuffix("_attention"))
        return func(*args, **kwargs)


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
        bias_HTE: added to the scores, or [B, H, T, E]; it may cover more keys, of which these are
            the last.
        sink_H: one more score in each softmax, whose value is 0; None: none.
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
        q_NTK: Tensor,
        k_NTK: Tensor,
        v_NTV: Tensor,
        bias_HTT: Tensor | None,
        document_BT: Tensor | None,
        window: int | None,
        causal: bool,
        sink_H: Tensor | None,
    ) -> Tensor:
        scale = 1 / math.sqrt(q_NTK.shape[2])

        outputs = []
        weights = []
        sums = []
        sinks = []
        for queries, keys in _blocks(q_NTK.shape[1], window, causal):
            s_NCE = wide(q_NTK[:, queries] @ k_NTK[:, keys].mT) * scale
            if bias_HTT is not None:
                s_NCE = _by_head(s_NCE, bias_HTT).add(bias_HTT[..., queries, keys]).flatten(0, 1)

            # int32 is as wide as the scores, so the mask vectorises.
            key_E = torch.arange(keys.start, keys.stop, dtype=torch.int32)
            query_C1 = torch.arange(queries.start, queries.stop, dtype=torch.int32)[:, None]
            if causal:
                s_NCE = torch.where(key_E > query_C1, -math.inf, s_NCE)
            if window is not None:
                s_NCE = torch.where(key_E <= query_C1 - window, -math.inf, s_NCE)
            if document_BT is not None:
                is_other_BCE = ~of_one_document(document_BT)[:, queries, keys]
                num_heads = len(s_NCE) // len(document_BT)
                is_other_NCE = is_other_BCE.repeat_interleave(num_heads, dim=0)
                s_NCE = torch.where(is_other_NCE, -math.inf, s_NCE)

            max_NC1 = s_NCE.amax(-1, keepdim=True)
            if sink_H is not None:
                sink_N11 = sink_H.to(s_NCE.dtype).repeat(len(s_NCE) // len(sink_H))[:, None, None]
                max_NC1 = torch.maximum(max_NC1, sink_N11)
                sinks.append((sink_N11 - max_NC1).exp())
            w_NCE = (s_NCE - max_NC1).exp().to(q_NTK.dtype)
            sum_NC1 = wide(w_NCE).sum(-1, keepdim=True)
            if sink_H is not None:
                sum_NC1 = sum_NC1 + sinks[-1]
            o_NCV = (wide(w_NCE @ v_NTV[:, keys]) / sum_NC1).to(q_NTK.dtype)

            weights.append(w_NCE)
            sums.append(sum_NC1)
            outputs.append(o_NCV)

        o_NTV = torch.cat(outputs, dim=1)
        ctx.blocks = _blocks(q_NTK.shape[1], window, causal)
        ctx.bias_shape = None if bias_HTT is None else bias_HTT.shape
        ctx.num_sinks = None if sink_H is None else len(sink_H)
        ctx.save_for_backward(q_NTK, k_NTK, v_NTV, o_NTV, *weights, *sums, *sinks)
        return o_NTV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (do_NTV,) = gradients
        q_NTK, k_NTK, v_NTV, o_NTV, *kept = ctx.saved_tensors
        dtype = q_NTK.dtype
        scale = 1 / math.sqrt(q_NTK.shape[2])

        weights = kept[: len(ctx.blocks)]
        sums = kept[len(ctx.blocks) : 2 * len(ctx.blocks)]
        sinks = kept[2 * len(ctx.blocks) :] or [None] * len(ctx.blocks)

        dq = []
        dk_NTK = torch.zeros_like(wide(k_NTK))
        dv_NTV = torch.zeros_like(wide(v_NTV))
        dbias_HTT = None
        if ctx.needs_input_grad[3]:
            dbias_HTT = do_NTV.new_zeros(ctx.bias_shape, dtype=dk_NTK.dtype)
        dsink_N = do_NTV.new_zeros(len(do_NTV), dtype=dk_NTK.dtype)
        blocks = zip(ctx.blocks, weights, sums, sinks, strict=True)
        for (queries, keys), w_NCE, sum_NC1, sink_NC1 in blocks:
            g_NCV = wide(do_NTV[:, queries]) / sum_NC1
            g_dot_o_NC1 = (g_NCV * wide(o_NTV[:, queries])).sum(-1, keepdim=True)
            g_NCV = g_NCV.to(dtype)

            if sink_NC1 is not None:
                dsink_N = dsink_N - (sink_NC1 * g_dot_o_NC1).sum((1, 2))

            dw_NCE = wide(g_NCV @ v_NTV[:, keys].mT)
            if dbias_HTT is not None:
                ds_NCE = wide(w_NCE) * (dw_NCE - g_dot_o_NC1)
                ds_BHCE = _by_head(ds_NCE, dbias_HTT)
                dbias_HTT[..., queries, keys] = ds_BHCE if dbias_HTT.ndim == 4 else ds_BHCE.sum(0)
                ds_NCE = (ds_NCE * scale).to(dtype)
            else:
                ds_NCE = (wide(w_NCE) * (dw_NCE - g_dot_o_NC1) * scale).to(dtype)

            dq.append(ds_NCE @ k_NTK[:, keys])
            dk_NTK[:, keys] += ds_NCE.mT @ q_NTK[:, queries]
            dv_NTV[:, keys] += w_NCE.mT @ g_NCV

        dqkv = (torch.cat(dq, dim=1), dk_NTK.to(dtype), dv_NTV.to(dtype))
        dsink_H = None
        if ctx.num_sinks is not None:
            dsink_H = torch.unflatten(dsink_N, 0, (-1, ctx.num_sinks)).sum(0)
        return *dqkv, dbias_HTT, None, None, None, dsink_H


def _blocks(length: int, window: int | None, causal: bool) -> list[tuple[slice, slice]]:
    """Return the queries of each block, and the keys that they attend to.

    At most four blocks: more would save less in products than they cost in calls.
    """
    block = max(math.ceil(length / 4), MIN_BLOCK)
    reach = length if window is None else window - 1
    found = []
    for start in range(0, length, block):
        end = min(start + block, length)
        keys = slice(max(start - reach, 0), end) if causal else slice(0, length)
        found.append((slice(start, end), keys))
    return found


def _by_head(x_NCE: Tensor, bias_HTT: Tensor) -> Tensor:
    """Return [B, H, C, E]."""
    return torch.unflatten(x_NCE, 0, (-1, bias_HTT.shape[-3]))


def _heads_first(x_BTHK: Tensor) -> Tensor:
    """Return [N, T, K], for batched matrix products."""
    return x_BTHK.transpose(1, 2).flatten(0, 1)


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least, as fused kernels accumulate."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
