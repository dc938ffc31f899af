"""The loss head: the product with the vocabulary and its cross-entropy, in chunks of tokens.

The logits of a whole batch are the largest tensor of a step (in float32, at V = 128k, 512 KB a
token). Here each chunk's logits live only until its loss and gradients are computed, both in the
forward pass, so memory does not grow with tokens times vocabulary, and a CPU keeps a chunk in its
cache.

Shapes: N tokens, C of a chunk, D model width, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rope_exp.model.attention.kernel import wide
from rope_exp.model.limits import TOKENS_OF_A_CHUNK

# In place of a target: nothing is predicted here.
NOTHING = -1

Gradients = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def at_places(x_BTD: Tensor, place_BP: Tensor | None) -> Tensor:
    """Return x_BPD at the predicted places of each row; None: at all places."""
    if place_BP is None:
        return x_BTD
    return x_BTD.gather(1, place_BP[:, :, None].expand(-1, -1, x_BTD.shape[-1]))


def summed_cross_entropy(
    x_ND: Tensor, head_VD: Tensor, target_N: Tensor, gradients: Gradients
) -> Tensor:
    """Return the sum over n of -log softmax(head x_n)[target_n], in nats, in float32 at least.

    Args:
        x_ND: the last layer's normed output; products are taken in autocast's dtype, if it is on.
        target_N: NOTHING where nothing is predicted.
        gradients: `chunk_gradients`, possibly compiled.
    """
    if torch.is_grad_enabled():
        return _Summed.apply(x_ND, head_VD, target_N, gradients)  # type: ignore[no-untyped-call]

    narrow_VD = _narrow(head_VD)
    of_chunks = []
    for x_CD, target_C in zip(*chunks(_narrow(x_ND), target_N), strict=True):
        logits_CV = wide(x_CD @ narrow_VD.T)
        nats = F.cross_entropy(logits_CV, target_C, reduction="sum", ignore_index=NOTHING)
        of_chunks.append(nats)
    return torch.stack(of_chunks).sum()


def summed_squares(x_ND: Tensor, head_OD: Tensor, target_NO: Tensor) -> Tensor:
    """Return the sum over n of the mean over o of (head x_n - target)^2, in float32 at least.

    Args:
        x_ND: the last layer's normed output; products are taken in autocast's dtype, if it is on.
        target_NO: O real numbers to predict at each place.
    """
    error_NO = wide(F.linear(x_ND, head_OD)) - target_NO
    return error_NO.square().mean(dim=-1).sum()


def chunk_gradients(
    x_CD: Tensor, head_VD: Tensor, target_C: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a chunk's summed loss, and its gradients with respect to x_CD and head_VD.

    With z = softmax(logits) - onehot(target), and 0 where nothing is predicted: dx = z head and
    dhead = z^T x.
    """
    logits_CV = wide(x_CD @ head_VD.T)
    max_C1 = logits_CV.amax(-1, keepdim=True)
    logsumexp_C1 = (logits_CV - max_C1).exp().sum(-1, keepdim=True).log() + max_C1
    counts_C1 = (target_C != NOTHING)[:, None].to(logits_CV.dtype)
    target_logit_C1 = logits_CV.gather(1, target_C[:, None].clamp(min=0))
    nats = (counts_C1 * (logsumexp_C1 - target_logit_C1)).sum()

    token_V = torch.arange(head_VD.shape[0], dtype=torch.int32, device=head_VD.device)
    is_target_CV = token_V == target_C[:, None].int()

    # A second exponential is cheaper than keeping the first in float32.
    z_CV = (logits_CV - logsumexp_C1).exp() - is_target_CV.to(logits_CV.dtype)
    z_CV = z_CV.to(x_CD.dtype)

    # Masking here is cheap: these tensors are far narrower than z.
    counts_C1 = counts_C1.to(x_CD.dtype)
    return nats, counts_C1 * (z_CV @ head_VD), z_CV.T @ (counts_C1 * x_CD)


class _Summed(torch.autograd.Function):
    """The summed loss; forward computes its gradients, and backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, head_VD: Tensor, target_N: Tensor, gradients: Gradients
    ) -> Tensor:
        narrow_VD = _narrow(head_VD)
        dx_ND = torch.empty_like(x_ND)
        dhead_VD = torch.zeros_like(head_VD)

        nats = []
        for x_CD, target_C, dx_CD in zip(*chunks(_narrow(x_ND), target_N, dx_ND), strict=True):
            chunk_nats, chunk_dx_CD, chunk_dhead_VD = gradients(x_CD, narrow_VD, target_C)
            nats.append(chunk_nats)
            dx_CD.copy_(chunk_dx_CD)
            dhead_VD += chunk_dhead_VD

        ctx.save_for_backward(dx_ND, dhead_VD)
        return torch.stack(nats).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_nats: Tensor) -> tuple[Tensor | None, ...]:
        dx_ND, dhead_VD = ctx.saved_tensors
        return dx_ND * of_nats[0], dhead_VD * of_nats[0], None, None


def chunks(*of_tokens: Tensor) -> list[tuple[Tensor, ...]]:
    """Return each tensor's chunks, as few as possible, with sizes that differ by at most one."""
    most = TOKENS_OF_A_CHUNK[of_tokens[0].device.type]
    return [tensor.tensor_split(math.ceil(len(tensor) / most)) for tensor in of_tokens]


def _narrow(x: Tensor) -> Tensor:
    """Return x in autocast's dtype for products, if autocast is on."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
