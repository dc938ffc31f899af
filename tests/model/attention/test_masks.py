"""Tests of attention with causal and document masks, biases and sinks against its definition."""

import itertools
import math
from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor

from rope_exp import kernels as kernel
from rope_exp.kernels import MAX_WRITTEN_OUT, MIN_BLOCK, attention

HEADS = 4
GROUPS = 2
LENGTH = 2 * MIN_BLOCK + 5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def direct(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_HTT: Tensor,
    *,
    causal: bool,
    document_BT: Tensor | None,
    sink_H: Tensor | None = None,
) -> Tensor:
    """Return attention by definition: scores, bias, mask, sink, softmax and the weighted sum."""
    k, v = (x.repeat_interleave(HEADS // GROUPS, dim=2) for x in (k, v))
    score_BHTT = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3]) + bias_HTT
    hidden = torch.zeros(len(q), 1, q.shape[1], q.shape[1], dtype=torch.bool)
    if causal:
        hidden |= torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    if document_BT is not None:
        for row, i, j in itertools.product(range(len(q)), range(q.shape[1]), range(q.shape[1])):
            hidden[row, 0, i, j] |= bool(document_BT[row, i] != document_BT[row, j])
    score_BHTT = score_BHTT.masked_fill(hidden, -torch.inf)
    if sink_H is not None:
        sink_BHT1 = sink_H[:, None, None].expand(*score_BHTT.shape[:-1], 1)
        score_BHTT = torch.cat([score_BHTT, sink_BHT1], dim=-1)
    weight_BHTT = score_BHTT.softmax(-1)[..., : q.shape[1]]
    return torch.einsum("bhts,bshk->bthk", weight_BHTT, v)


@pytest.mark.parametrize("longest", [MAX_WRITTEN_OUT, 0], ids=["written out", "torch's"])
@pytest.mark.parametrize("of_documents", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [(), (2,)], ids=["one bias", "a bias for each row"])
@pytest.mark.parametrize("has_sink", [False, True])
def test_outputs_and_all_gradients(
    rows: tuple[int, ...], has_sink: bool, causal: bool, of_documents: bool, longest: int
) -> None:
    """Gradients are of queries, keys, values, bias and sink; LENGTH makes several query blocks."""
    length = LENGTH if not of_documents else 40
    q, gradient = (drawn(2, length, HEADS, 6, seed=seed) for seed in (1, 2))
    k, v = (drawn(2, length, GROUPS, 6, seed=seed) for seed in (3, 4))
    leaves = [q, k, v, drawn(*rows, HEADS, length, length, seed=5)]
    if has_sink:
        leaves.append(drawn(HEADS, seed=6))
    for leaf in leaves:
        leaf.requires_grad_()

    document_BT = None
    if of_documents:
        document_BT = torch.tensor([[0] * 7 + [1] * 33, [4] * 20 + [5] + [4] * 19])
    sink = {"sink_H": leaves[4]} if has_sink else {}
    expected = direct(*leaves[:4], causal=causal, document_BT=document_BT, **sink)
    with mock.patch.object(kernel, "MAX_WRITTEN_OUT", longest):
        ours = attention(
            *leaves[:3], causal=causal, bias_HTE=leaves[3], document_BT=document_BT, **sink
        )
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)

    slopes = torch.autograd.grad(ours, leaves, gradient)
    for own, right in zip(slopes, torch.autograd.grad(expected, leaves, gradient), strict=True):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-11)


def test_the_gradient_by_a_bias_is_the_slope() -> None:
    q, k, v = (drawn(2, 5, 2, 2, seed=seed).requires_grad_() for seed in range(3))
    bias_HTT = drawn(2, 5, 5, seed=3).requires_grad_()

    def of(*leaves: Tensor) -> Tensor:
        return attention(*leaves[:3], bias_HTE=leaves[3])

    assert torch.autograd.gradcheck(of, (q, k, v, bias_HTT))


def test_without_an_order_a_permutation_goes_through() -> None:
    """Bidirectional attention without positions is permutation-equivariant; causal is not."""
    q, k, v = (drawn(1, 30, 2, 4, seed=seed) for seed in range(3))
    order_T = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    both_ways = partial(attention, causal=False)
    shuffled = both_ways(*(x[:, order_T] for x in (q, k, v)))
    torch.testing.assert_close(shuffled, both_ways(q, k, v)[:, order_T], rtol=0, atol=1e-12)
    assert not torch.allclose(
        attention(q, k, v)[:, order_T], attention(*(x[:, order_T] for x in (q, k, v)))
    )


def test_a_bias_in_bfloat16_errs_as_the_rest_does() -> None:
    """The bias is added in float32, so the error is that of the bfloat16 inputs alone."""
    q, k, v = (drawn(1, 200, 2, 16, seed=seed) for seed in range(3))
    bias_HTT = 100 * drawn(2, 200, 200, seed=3)
    exact = attention(q, k, v, bias_HTE=bias_HTT)
    narrow = attention(*(x.bfloat16() for x in (q, k, v)), bias_HTE=bias_HTT.float())
    assert float((narrow.double() - exact).norm() / exact.norm()) < 0.02
