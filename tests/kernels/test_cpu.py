"""Tests of materialised attention, for CPUs, against its definition and torch's kernel."""

import math
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import normal
from torch import Tensor

from rope_exp import cpu_attention as cpu
from rope_exp.attention import attention
from rope_exp.cpu_attention import MAX_LENGTH, MIN_BLOCK

LENGTHS = st.sampled_from(
    [1, 2, 3, MIN_BLOCK - 1, MIN_BLOCK, MIN_BLOCK + 1, 2 * MIN_BLOCK, 4 * MIN_BLOCK + 37]
)
SEEDS = st.integers(0, 2**31)


def inputs(
    length: int,
    heads: int,
    groups: int,
    dim: int,
    seed: int,
    dtype: torch.dtype,
    out_dim: int | None = None,
) -> tuple[Tensor, ...]:
    """Return q, k, v and the gradient with respect to the output."""
    generator = torch.Generator().manual_seed(seed)
    widths = (dim, dim, out_dim or dim, out_dim or dim)
    counts = (heads, groups, groups, heads)
    shapes = [(2, length, count, width) for count, width in zip(counts, widths, strict=True)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return tuple(x.to(dtype) for x in drawn)


def direct(
    q_BTHK: Tensor,
    k_BTGK: Tensor,
    v_BTGK: Tensor,
    window: int | None = None,
    *,
    bias: Tensor | float = 0.0,
    causal: bool = True,
    document_BT: Tensor | None = None,
    sink_H: Tensor | None = None,
) -> Tensor:
    """Return attention by definition: scores, bias, mask, sink, softmax and the weighted sum."""
    shared = q_BTHK.shape[2] // k_BTGK.shape[2]
    k_BTHK, v_BTHK = (x.repeat_interleave(shared, dim=2) for x in (k_BTGK, v_BTGK))
    s_BHTT = torch.einsum("bthk,bshk->bhts", q_BTHK, k_BTHK) / math.sqrt(q_BTHK.shape[3]) + bias
    place_T = torch.arange(q_BTHK.shape[1])
    offset_TT = place_T - place_T[:, None]
    hidden = torch.zeros_like(s_BHTT, dtype=torch.bool)
    if causal:
        hidden |= offset_TT > 0
    if window is not None:
        hidden |= offset_TT <= -window
    if document_BT is not None:
        hidden |= (document_BT[:, :, None] != document_BT[:, None])[:, None]
    s_BHTT = s_BHTT.masked_fill(hidden, -torch.inf)
    if sink_H is not None:
        s_BHTT = torch.cat([s_BHTT, sink_H[:, None, None].expand(*s_BHTT.shape[:-1], 1)], dim=-1)
    return torch.einsum("bhts,bshk->bthk", s_BHTT.softmax(-1)[..., : len(place_T)], v_BTHK)


def fused(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK, k_BTGK, v_BTGK))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def with_gradients(function: Any, arguments: tuple[Tensor, ...]) -> list[Tensor]:
    *leaves, gradient = (x.detach().clone() for x in arguments)
    for leaf in leaves:
        leaf.requires_grad_()
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]


@settings(max_examples=40)
@given(
    LENGTHS,
    st.sampled_from([(1, 1), (4, 4), (4, 2), (4, 1)]),
    st.sampled_from([None, 1, 2, 5, 127, 128, 129, 400]),
    st.sampled_from([2, 4, 8]),
    SEEDS,
)
def test_output_and_gradients_are_those_of_the_definition(
    length: int, heads: tuple[int, int], window: int | None, out_dim: int, seed: int
) -> None:
    """Values may be narrower or wider than keys, also in the fused kernel, which pads them."""
    arguments = inputs(length, *heads, 4, seed, torch.float64, out_dim)
    right = with_gradients(partial(direct, window=window), arguments)
    for longest in (MAX_LENGTH, 0):
        with mock.patch.object(cpu, "MAX_LENGTH", longest):
            ours = with_gradients(partial(attention, window=window), arguments)
        for own, expected in zip(ours, right, strict=True):
            torch.testing.assert_close(own, expected, rtol=0, atol=1e-11)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch's compiler
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_in_bfloat16_it_errs_at_most_twice_as_torch_does(compiled: bool) -> None:
    # Torch's kernel keeps scores in float32; materialised products of bfloat16 are bfloat16.
    arguments = inputs(300, 2, 2, 64, 0, torch.bfloat16)
    exact = with_gradients(direct, tuple(x.double() for x in arguments))
    ours = with_gradients(torch.compile(attention) if compiled else attention, arguments)
    theirs = with_gradients(fused, arguments)
    for own, other, right in zip(ours, theirs, exact, strict=True):
        assert own.dtype == torch.bfloat16
        assert (own.double() - right).norm() < 2 * (other.double() - right).norm()


def test_scores_of_any_size_give_finite_weights() -> None:
    q, k, v, gradient = inputs(40, 1, 1, 8, 0, torch.float32)
    arguments = (1e4 * q, 1e4 * k, v, gradient)
    expected = with_gradients(direct, arguments)
    for own, right in zip(with_gradients(attention, arguments), expected, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("longest", [MAX_LENGTH, 0], ids=["materialised", "torch's"])
@pytest.mark.parametrize("of_documents", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [(), (2,)], ids=["one bias", "a bias for each row"])
@pytest.mark.parametrize("has_sink", [False, True])
def test_biases_documents_and_sinks_with_all_gradients(
    rows: tuple[int, ...], has_sink: bool, causal: bool, of_documents: bool, longest: int
) -> None:
    """The length without documents makes several query blocks."""
    length = 40 if of_documents else 2 * MIN_BLOCK + 5
    *leaves, gradient = inputs(length, 4, 2, 6, 1, torch.float64)
    leaves.append(normal(*rows, 4, length, length, seed=5))
    if has_sink:
        leaves.append(normal(4, seed=6))
    for leaf in leaves:
        leaf.requires_grad_()

    masks: dict[str, Any] = {"causal": causal}
    if of_documents:
        masks["document_BT"] = torch.tensor([[0] * 7 + [1] * 33, [4] * 20 + [5] + [4] * 19])
    if has_sink:
        masks["sink_H"] = leaves[4]
    q, k, v = leaves[:3]
    expected = direct(q, k, v, bias=leaves[3], **masks)
    with mock.patch.object(cpu, "MAX_LENGTH", longest):
        ours = attention(q, k, v, bias_HTE=leaves[3], **masks)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)

    slopes = torch.autograd.grad(ours, leaves, gradient)
    for own, right in zip(slopes, torch.autograd.grad(expected, leaves, gradient), strict=True):
        torch.testing.assert_close(own, right, rtol=0, atol=1e-11)


def test_a_bias_in_bfloat16_errs_as_the_rest_does() -> None:
    """The bias is added in float32, so the error is that of the bfloat16 inputs alone."""
    q, k, v = (normal(1, 200, 2, 16, seed=seed) for seed in range(3))
    bias_HTT = 100 * normal(2, 200, 200, seed=3)
    exact = attention(q, k, v, bias_HTE=bias_HTT)
    narrow = attention(*(x.bfloat16() for x in (q, k, v)), bias_HTE=bias_HTT.float())
    assert float((narrow.double() - exact).norm() / exact.norm()) < 0.02
