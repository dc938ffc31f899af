"""Attention masks: the keys to which each query attends.

Shapes: B batch, T query, E key, H query heads, K features of a key.
"""

import math

import torch
from torch import Tensor


def mask_of(
    q_BTHK: Tensor,
    window: int | None,
    causal: bool,
    bias_HTT: Tensor | None,
    document_BT: Tensor | None,
) -> Tensor | None:
    """Return a mask for torch's kernel: added to the scores if there is a bias, else boolean.

    None: `causal` alone suffices.
    """
    if window is None and bias_HTT is None and document_BT is None:
        return None

    length = q_BTHK.shape[1]
    is_met = torch.ones(length, length, dtype=torch.bool, device=q_BTHK.device)
    if causal:
        is_met = meets(length, length, window, q_BTHK.device)
    if document_BT is not None:
        is_met = is_met & of_one_document(document_BT)[:, None]
    if bias_HTT is None:
        return is_met
    return bias_HTT.to(q_BTHK.dtype).masked_fill(~is_met, -math.inf)


def of_one_document(document_BT: Tensor) -> Tensor:
    """Return whether two tokens of a row belong to one document, [B, T, T]."""
    return document_BT[:, :, None] == document_BT[:, None, :]


def meets(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether each of the last T queries attends to each key, [T, E]."""
    query_T = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    key_E = torch.arange(num_keys, device=device)
    meets_TE = key_E <= query_T
    return meets_TE if window is None else meets_TE & (key_E > query_T - window)
